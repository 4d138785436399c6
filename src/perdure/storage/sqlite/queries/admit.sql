-- name: waiting
-- Jobs from a caller's transaction that have not started.
SELECT json_group_array(json_array(id, queue, priority, tenant, run_at, rank)) FROM {whole}
WHERE id IN (SELECT value FROM json_each(?)) AND state IN ('blocked', 'scheduled', 'ready');

-- name: rank
-- Their ranks in fair queues.
WITH input (id, rank) AS (VALUES {values})
UPDATE perdure_jobs SET rank = input.rank FROM input WHERE perdure_jobs.id = input.id;

-- name: count
-- Blocked jobs wait for as many jobs as they have open edges: several parents may be one stored job.
UPDATE perdure_bodies SET waits = (
    SELECT count(*) FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1)
FROM perdure_jobs AS job
WHERE job.number = perdure_bodies.number AND job.id IN (SELECT value FROM json_each(?)) AND job.state = 'blocked'
    AND after IS NOT NULL;
