-- name: succeed
-- The plain success of a holder, the most common change of all. A running row is never hidden nor counted.
WITH given (id, attempt, stamp, failures, result, prune_at, started_at) AS (VALUES {values})
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = given.failures, losses = 0, suspect = 0,
    result = given.result, reason = NULL, started_at = coalesce(given.started_at, perdure_jobs.started_at),
    finished_at = ?, prune_at = given.prune_at,
    accepted_stamp = given.stamp, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM given
WHERE perdure_jobs.id = given.id AND state = 'running'
    AND perdure_jobs.attempt = given.attempt AND perdure_jobs.stamp = given.stamp;

-- name: succeed_alike
-- The same of jobs without a result that have all but their starts in common, given as a JSON object.
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = ?, losses = 0, suspect = 0,
    result = NULL, reason = NULL, started_at = coalesce(given.value, perdure_jobs.started_at),
    finished_at = ?, prune_at = ?,
    accepted_stamp = ?, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM json_each(?) AS given
WHERE perdure_jobs.id = given.key AND state = 'running'
    AND perdure_jobs.attempt = ? AND perdure_jobs.stamp = ?;
