-- name: limited_queues
-- The queues of those of these jobs that run under limits.
SELECT json_group_array(DISTINCT queue) FROM perdure_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND stamp IS NOT NULL AND limits IS NOT NULL;

-- name: any_closed
-- Whether somebody waits for the end of a job under limits.
SELECT EXISTS (SELECT 1 FROM perdure_closers);

-- name: numbers
-- The rows of these jobs.
SELECT json_group_array(number) FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: seen
-- What the guards of changes look at.
SELECT json_group_array(json_array(
    id, queue, state, version, attempt, stamp, accepted_stamp, hidden, leased_by, leased_until, run_at, rank, finished_at,
    unique_key, holds_key, limits IS NOT NULL))
FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: move
-- Write the values of changes whose guard was found to hold.
WITH given (id, state, failures, losses, suspect, parked, run_at, rank, result, reason, started_at,
    finished_at, prune_at, keep_last, hidden, stamp, accepted_stamp, leased_by, leased_until, holds_key, in_lane, apart)
    AS (VALUES {values})
UPDATE perdure_jobs SET
    state = given.state, version = min(version, 4611686018427387904) + 1, failures = given.failures, losses = given.losses,
    suspect = given.suspect, parked = given.parked, run_at = given.run_at, rank = given.rank, result = given.result, reason = given.reason,
    started_at = coalesce(given.started_at, perdure_jobs.started_at), finished_at = given.finished_at,
    prune_at = given.prune_at, keep_last = given.keep_last, hidden = given.hidden, stamp = given.stamp,
    accepted_stamp = given.accepted_stamp, leased_by = given.leased_by, leased_until = given.leased_until,
    holds_key = given.holds_key, in_lane = given.in_lane, apart = given.apart,
    releases = CASE WHEN given.state = perdure_jobs.state THEN releases ELSE followed END
FROM given WHERE perdure_jobs.id = given.id;

-- name: move_on
-- What moves tell beside that. The numbers are found first: in a plain join SQLite reads all bodies for each job of the list.
WITH given (id, errors, next_id) AS (VALUES {values}),
found (number, errors, next_id) AS MATERIALIZED (
    SELECT job.number, given.errors, given.next_id FROM given CROSS JOIN perdure_jobs AS job ON job.id = given.id)
UPDATE perdure_bodies SET
    errors = coalesce(found.errors, perdure_bodies.errors), next_id = coalesce(found.next_id, perdure_bodies.next_id)
FROM found WHERE perdure_bodies.number = found.number;

-- name: let_go
-- Give up the hold and the key of an ended job; the rest stays.
WITH given (id) AS (VALUES {values})
UPDATE perdure_jobs SET
    version = min(version, 4611686018427387904) + 1, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM given WHERE perdure_jobs.id = given.id;

-- name: go_on_with
-- The job that goes on with a chain is the owner of a key that the next one would share.
UPDATE perdure_bodies SET next_id = ? WHERE number = (SELECT number FROM perdure_jobs WHERE id = ?);

-- name: key_owner
-- Who holds a key of scope waiting or active.
SELECT id FROM perdure_jobs WHERE holds_key = 1 AND unique_key = ?;

-- name: started
-- Note which handlers began.
WITH given (id, attempt, stamp, started_at) AS (VALUES {values})
UPDATE perdure_jobs SET started_at = given.started_at
FROM given
WHERE perdure_jobs.id = given.id AND state = 'running'
    AND perdure_jobs.attempt = given.attempt AND perdure_jobs.stamp = given.stamp;

-- name: renew
-- Prolong the leases of holds that stand, by their own or by what is asked for; a longer one becomes their own.
WITH given (id, attempt, stamp) AS (VALUES {values})
UPDATE perdure_jobs SET leased_until = min(coalesce(?, lease), 4611686018427387904) + ?, lease = max(lease, coalesce(?, lease))
FROM given
WHERE perdure_jobs.id = given.id AND state = 'running'
    AND perdure_jobs.attempt = given.attempt AND perdure_jobs.stamp = given.stamp;

-- name: progress
-- Write the progress that handlers told. The numbers are found first, as in move_on.
WITH given (id, progress) AS (VALUES {values}),
found (number, progress) AS MATERIALIZED (
    SELECT job.number, given.progress FROM given CROSS JOIN perdure_jobs AS job ON job.id = given.id)
UPDATE perdure_bodies SET progress = found.progress FROM found WHERE perdure_bodies.number = found.number;

-- name: log
-- Append lines to jobs' logs.
INSERT INTO perdure_log (job, line) VALUES {values};

-- name: cut_log
-- Keep the newest lines of a job's log.
DELETE FROM perdure_log WHERE job = :job AND number <= (
    SELECT number FROM perdure_log WHERE job = :job ORDER BY number DESC LIMIT 1 OFFSET :kept);

-- name: holding
-- What a worker holds under a stamp.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM {whole}
    WHERE leased_until IS NOT NULL AND limits IS NULL AND state = 'running' AND leased_by = :worker AND stamp = :stamp
    UNION ALL
    SELECT * FROM {whole}
    WHERE stamp = :stamp AND limits IS NOT NULL AND state = 'running' AND leased_by = :worker
    ORDER BY priority DESC, rank, id);
