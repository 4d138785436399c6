-- name: update_jobs
-- The values of changes whose guard holds.
WITH given (id, state, failures, losses, suspect, parked, run_at, rank, result, reason, started_at,
    finished_at, prune_at, keep_last, hidden, stamp, accepted_stamp, leased_by, leased_until, holds_key, in_lane, index_state)
    AS (VALUES {values})
UPDATE perdure_jobs SET
    state = given.state, version = min(version, 4611686018427387904) + 1, failures = given.failures, losses = given.losses,
    suspect = given.suspect, parked = given.parked, run_at = given.run_at, rank = given.rank, result = given.result, reason = given.reason,
    started_at = given.started_at, finished_at = given.finished_at,
    prune_at = given.prune_at, keep_last = given.keep_last, hidden = given.hidden, stamp = given.stamp,
    accepted_stamp = given.accepted_stamp, leased_by = given.leased_by, leased_until = given.leased_until,
    holds_key = given.holds_key, in_lane = given.in_lane, index_state = given.index_state,
    edges_pending = CASE WHEN given.state = perdure_jobs.state THEN edges_pending ELSE followed END
FROM given WHERE perdure_jobs.id = given.id;

-- name: update_bodies
-- What changes write to bodies. The numbers are found first: in a plain join SQLite reads all bodies for each job of the list.
WITH given (id, errors, next_id) AS (VALUES {values}),
found (number, errors, next_id) AS MATERIALIZED (
    SELECT job.number, given.errors, given.next_id FROM given CROSS JOIN perdure_jobs AS job ON job.id = given.id)
UPDATE perdure_bodies SET
    errors = coalesce(found.errors, perdure_bodies.errors), next_id = coalesce(found.next_id, perdure_bodies.next_id)
FROM found WHERE perdure_bodies.number = found.number;

-- name: release
-- Give up the hold and the key of an ended job; the rest stays.
WITH given (id) AS (VALUES {values})
UPDATE perdure_jobs SET
    version = min(version, 4611686018427387904) + 1, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM given WHERE perdure_jobs.id = given.id;

-- name: set_next
-- A chain continues with the owner of the key that its next job would have shared.
UPDATE perdure_bodies SET next_id = ? WHERE number = (SELECT number FROM perdure_jobs WHERE id = ?);

-- name: key_owner
-- Who holds a key of scope waiting or active.
SELECT id FROM perdure_jobs WHERE holds_key = 1 AND unique_key = ?;
