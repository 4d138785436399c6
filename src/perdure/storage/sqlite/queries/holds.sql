-- name: started
-- When handlers started.
WITH input (id, attempt, stamp, started_at) AS (VALUES {values})
UPDATE perdure_jobs SET started_at = input.started_at
FROM input
WHERE perdure_jobs.id = input.id AND state = 'running'
    AND perdure_jobs.attempt = input.attempt AND perdure_jobs.stamp = input.stamp;

-- name: renew
-- Renew the leases of valid holds, for their own time or the given one; a longer one becomes their own.
WITH input (id, attempt, stamp) AS (VALUES {values})
UPDATE perdure_jobs SET leased_until = min(coalesce(?, lease), 4611686018427387904) + ?, lease = max(lease, coalesce(?, lease))
FROM input
WHERE perdure_jobs.id = input.id AND state = 'running'
    AND perdure_jobs.attempt = input.attempt AND perdure_jobs.stamp = input.stamp;

-- name: progress
-- The progress of handlers. The numbers are found first, as in `update_bodies` of apply.sql.
WITH input (id, progress) AS (VALUES {values}),
found (number, progress) AS MATERIALIZED (
    SELECT job.number, input.progress FROM input CROSS JOIN perdure_jobs AS job ON job.id = input.id)
UPDATE perdure_bodies SET progress = found.progress FROM found WHERE perdure_bodies.number = found.number;

-- name: log
-- Append lines to jobs' logs.
INSERT INTO perdure_log (job, line) VALUES {values};

-- name: cut_log
-- Keep the newest lines of a job's log.
DELETE FROM perdure_log WHERE job = :job AND number <= (
    SELECT number FROM perdure_log WHERE job = :job ORDER BY number DESC LIMIT 1 OFFSET :kept);

-- name: held_by
-- The jobs that a worker holds under a stamp.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM {whole}
    WHERE leased_until IS NOT NULL AND limits IS NULL AND state = 'running' AND leased_by = :worker AND stamp = :stamp
    UNION ALL
    SELECT * FROM {whole}
    WHERE stamp = :stamp AND limits IS NOT NULL AND state = 'running' AND leased_by = :worker
    ORDER BY priority DESC, rank, id);
