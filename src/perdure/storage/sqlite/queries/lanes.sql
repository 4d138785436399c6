-- name: lanes
-- All lanes of a queue, or of every queue (NULL).
WITH RECURSIVE asked (queue) AS (SELECT ?), lane (head) AS (
    SELECT CASE WHEN (SELECT queue FROM asked) IS NULL THEN (
        SELECT number FROM perdure_jobs WHERE in_lane = 1 ORDER BY queue, task, routing_key LIMIT 1)
    ELSE (
        SELECT number FROM perdure_jobs WHERE in_lane = 1 AND queue = (SELECT queue FROM asked) ORDER BY task, routing_key LIMIT 1)
    END
    UNION ALL
    SELECT coalesce(
        CASE WHEN last.routing_key IS NULL THEN (
            SELECT number FROM perdure_jobs
            WHERE in_lane = 1
                AND queue = last.queue AND task = last.task AND routing_key >= ''
            ORDER BY routing_key LIMIT 1)
        ELSE (
            SELECT number FROM perdure_jobs
            WHERE in_lane = 1
                AND queue = last.queue AND task = last.task AND routing_key > last.routing_key
            ORDER BY routing_key LIMIT 1)
        END,
        (SELECT number FROM perdure_jobs
            WHERE in_lane = 1 AND queue = last.queue AND task > last.task
            ORDER BY task, routing_key LIMIT 1),
        CASE WHEN (SELECT queue FROM asked) IS NULL THEN (
            SELECT number FROM perdure_jobs
            WHERE in_lane = 1 AND queue > last.queue
            ORDER BY queue, task, routing_key LIMIT 1)
        END)
    FROM lane JOIN perdure_jobs AS last ON last.number = lane.head
)
SELECT json_group_array(json_array(queue, task, routing_key))
FROM lane JOIN perdure_jobs ON perdure_jobs.number = lane.head;

-- name: has_lines
SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'perdure_jobs_line';

-- name: make_lines
-- What can be claimed, in lines of task and routing key over all queues.
CREATE INDEX IF NOT EXISTS perdure_jobs_line ON perdure_jobs (task, routing_key, priority DESC, rank, id)
    WHERE in_lane = 1 AND in_paused_queue IS NOT 1;

-- name: lines
-- All lines that hold jobs: a loose scan of their index.
WITH RECURSIVE line (head) AS (
    SELECT (
        SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line WHERE in_lane = 1 AND in_paused_queue IS NOT 1 ORDER BY task, routing_key LIMIT 1)
    UNION ALL
    SELECT coalesce(
        CASE WHEN last.routing_key IS NULL THEN (
            SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND in_paused_queue IS NOT 1 AND task = last.task AND routing_key >= ''
            ORDER BY routing_key LIMIT 1)
        ELSE (
            SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND in_paused_queue IS NOT 1 AND task = last.task AND routing_key > last.routing_key
            ORDER BY routing_key LIMIT 1)
        END,
        (SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND in_paused_queue IS NOT 1 AND task > last.task
            ORDER BY task, routing_key LIMIT 1))
    FROM line JOIN perdure_jobs AS last ON last.number = line.head
)
SELECT json_group_array(json_array(task, routing_key))
FROM line JOIN perdure_jobs ON perdure_jobs.number = line.head;

-- name: line
-- One line in the order of a claim, without jobs that have expired, that a newer version wrote for itself, or that a claim has
-- met in a paused queue.
SELECT number, priority, rank, id FROM {whole}
WHERE task = :task{lane} AND routing_key IS :routing_key{lane} AND in_lane = 1 AND state = 'ready'
    AND {may_run}
    AND in_paused_queue IS NOT 1

-- name: lane
-- One lane of several in the order of a claim, without jobs that have expired or that a newer version wrote for itself.
SELECT number, priority, rank, id FROM {whole}
WHERE queue = :queue{lane} AND task = :task{lane} AND routing_key IS :routing_key{lane} AND in_lane = 1 AND state = 'ready'
    AND {may_run}

-- name: best_of_lanes
-- The best jobs of several lanes, merged by their heads, as they will be once claimed.
SELECT json_group_array(best.number), CAST('[' || coalesce(group_concat({claimed}), '') || ']' AS BLOB) FROM (
    {lanes} ORDER BY priority DESC, rank, id LIMIT :limit) AS best
CROSS JOIN perdure_jobs AS job ON job.number = best.number
CROSS JOIN perdure_bodies AS body ON body.number = best.number

-- name: in_paused_queues
-- Those of some jobs whose queue is paused.
SELECT json_group_array(job.number) FROM json_each(?) AS input CROSS JOIN perdure_jobs AS job ON job.number = input.value
WHERE EXISTS (SELECT 1 FROM perdure_queues AS paused WHERE paused.name = job.queue AND paused.paused = 1);

-- name: hold_up
-- Let no claim along lines read these jobs until their queue is resumed.
UPDATE perdure_jobs SET in_paused_queue = 1 WHERE number IN (SELECT value FROM json_each(?));
