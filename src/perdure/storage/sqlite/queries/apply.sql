-- name: update_jobs
-- The values of changes whose guard holds.
WITH input (id, state, failures, losses, suspect, parked, run_at, rank, result, reason, started_at,
    finished_at, prune_at, keep_last, hidden, stamp, accepted_stamp, leased_by, leased_until, holds_key, in_lane, index_state)
    AS (VALUES {values})
UPDATE perdure_jobs SET
    state = input.state, version = min(version, 4611686018427387904) + 1, failures = input.failures, losses = input.losses,
    suspect = input.suspect, parked = input.parked, run_at = input.run_at, rank = input.rank, result = input.result, reason = input.reason,
    started_at = input.started_at, finished_at = input.finished_at,
    prune_at = input.prune_at, keep_last = input.keep_last, hidden = input.hidden, stamp = input.stamp,
    accepted_stamp = input.accepted_stamp, leased_by = input.leased_by, leased_until = input.leased_until,
    holds_key = input.holds_key, in_lane = input.in_lane, index_state = input.index_state,
    edges_pending = CASE WHEN input.state = perdure_jobs.state THEN edges_pending ELSE followed END
FROM input WHERE perdure_jobs.id = input.id;

-- name: update_bodies
-- What changes write to bodies. The numbers are found first: in a plain join SQLite reads all bodies for each job of the list.
WITH input (id, errors, next_id) AS (VALUES {values}),
found (number, errors, next_id) AS MATERIALIZED (
    SELECT job.number, input.errors, input.next_id FROM input CROSS JOIN perdure_jobs AS job ON job.id = input.id)
UPDATE perdure_bodies SET
    errors = coalesce(found.errors, perdure_bodies.errors), next_id = coalesce(found.next_id, perdure_bodies.next_id)
FROM found WHERE perdure_bodies.number = found.number;

-- name: release
-- Give up the hold and the key of an ended job; the rest stays.
WITH input (id) AS (VALUES {values})
UPDATE perdure_jobs SET
    version = min(version, 4611686018427387904) + 1, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM input WHERE perdure_jobs.id = input.id;

-- name: set_next
-- A chain continues with the owner of the key that its next job would have shared.
UPDATE perdure_bodies SET next_id = ? WHERE number = (SELECT number FROM perdure_jobs WHERE id = ?);

-- name: key_owner
-- Who holds a key of scope waiting or active.
SELECT id FROM perdure_jobs WHERE holds_key = 1 AND unique_key = ?;
