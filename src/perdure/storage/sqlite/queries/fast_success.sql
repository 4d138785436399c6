-- name: succeed
-- Ordinary successes that their holders report. A running row is never hidden nor counted.
WITH input (id, attempt, stamp, failures, result, keep, started_at) AS (VALUES {values})
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = input.failures, losses = 0, suspect = 0,
    result = input.result, reason = NULL, started_at = coalesce(input.started_at, perdure_jobs.started_at),
    finished_at = ?, prune_at = input.keep + ?,
    accepted_stamp = input.stamp, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM input
WHERE perdure_jobs.id = input.id AND state = 'running'
    AND perdure_jobs.attempt = input.attempt AND perdure_jobs.stamp = input.stamp;

-- name: any_closed
-- Whether a gate waits for the end of a job under limits.
SELECT EXISTS (SELECT 1 FROM perdure_full_limits);

-- name: limited_queues
-- The queues of those of these jobs that run under limits.
SELECT json_group_array(DISTINCT queue) FROM perdure_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND stamp IS NOT NULL AND limits IS NOT NULL;
