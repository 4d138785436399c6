-- name: state
-- What a claim must know first: the next due time, paused queues, whether there are suspects, whether edges are to be
-- resolved, and the first lanes (a loose scan of the claim index: one seek per lane, however many jobs it holds).
WITH RECURSIVE lane (head) AS (
    SELECT (
        SELECT number FROM perdure_jobs WHERE in_lane = 1
        ORDER BY queue, task, routing_key LIMIT 1)
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
        (SELECT number FROM perdure_jobs
            WHERE in_lane = 1 AND queue > last.queue
            ORDER BY queue, task, routing_key LIMIT 1))
    FROM lane JOIN perdure_jobs AS last ON last.number = lane.head
    LIMIT {lanes_read}
)
SELECT
    (SELECT min(run_at) FROM perdure_jobs WHERE index_state = 'scheduled'),
    (SELECT json_group_array(name) FROM (SELECT name FROM perdure_queues WHERE paused = 1 LIMIT {paused_read})),
    EXISTS (SELECT 1 FROM perdure_jobs WHERE index_state = 'suspect'),
    EXISTS (SELECT 1 FROM perdure_jobs WHERE edges_pending = 1 AND finished_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM perdure_unresolved),
    (SELECT json_group_array(json_array(queue, task, routing_key))
        FROM lane JOIN perdure_jobs ON perdure_jobs.number = lane.head);

-- name: due
-- Of the jobs that promote will make ready: their queues, and those that are under limits.
SELECT json_group_array(DISTINCT queue), json_group_array(id) FILTER (WHERE limits IS NOT NULL) FROM (
    SELECT id, queue, limits FROM perdure_jobs WHERE index_state = 'scheduled' AND run_at <= ? ORDER BY run_at, id LIMIT ?);

-- name: promote
-- Scheduled jobs whose time has come become ready, the earliest first.
UPDATE perdure_jobs SET state = 'ready', version = min(version, 4611686018427387904) + 1, parked = limits IS NOT NULL,
    in_lane = CASE WHEN limits IS NULL AND suspect = 0 THEN 1 END,
    index_state = CASE WHEN suspect <> 0 THEN 'suspect' END
WHERE number IN (
    SELECT number FROM perdure_jobs WHERE index_state = 'scheduled' AND run_at <= ? ORDER BY run_at, id LIMIT ?);

-- name: suspects
-- Suspects in the order of a claim, those under limits or the others.
SELECT json_group_array(json_array(number, priority, rank, id, limits, queue, task, routing_key)) FROM (
    SELECT number, priority, rank, id, limits, queue, task, routing_key FROM {whole}
    WHERE index_state = 'suspect' AND parked = :limited
        AND {may_run}
    ORDER BY priority DESC, rank, id);
