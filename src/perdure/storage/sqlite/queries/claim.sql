-- name: outlook
-- What a claim must know first: the next due time, paused queues, whether there are suspects, whether jobs run under
-- limits, whether there is something to settle, and the first lanes (a loose scan of the claim index: one seek per lane,
-- however many jobs it holds).
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
    LIMIT {lanes_told}
)
SELECT
    (SELECT min(run_at) FROM perdure_jobs WHERE apart = 'scheduled'),
    (SELECT json_group_array(name) FROM (SELECT name FROM perdure_queues WHERE paused = 1 LIMIT {paused_told})),
    EXISTS (SELECT 1 FROM perdure_jobs WHERE apart = 'suspect'),
    EXISTS (SELECT 1 FROM perdure_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL),
    EXISTS (SELECT 1 FROM perdure_jobs WHERE releases = 1 AND finished_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM perdure_unresolved),
    (SELECT json_group_array(json_array(queue, task, routing_key))
        FROM lane JOIN perdure_jobs ON perdure_jobs.number = lane.head);

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
    WHERE in_lane = 1 AND held_up IS NOT 1;

-- name: lines
-- All lines that hold jobs: a loose scan of their index.
WITH RECURSIVE line (head) AS (
    SELECT (
        SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line WHERE in_lane = 1 AND held_up IS NOT 1 ORDER BY task, routing_key LIMIT 1)
    UNION ALL
    SELECT coalesce(
        CASE WHEN last.routing_key IS NULL THEN (
            SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND held_up IS NOT 1 AND task = last.task AND routing_key >= ''
            ORDER BY routing_key LIMIT 1)
        ELSE (
            SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND held_up IS NOT 1 AND task = last.task AND routing_key > last.routing_key
            ORDER BY routing_key LIMIT 1)
        END,
        (SELECT number FROM perdure_jobs INDEXED BY perdure_jobs_line
            WHERE in_lane = 1 AND held_up IS NOT 1 AND task > last.task
            ORDER BY task, routing_key LIMIT 1))
    FROM line JOIN perdure_jobs AS last ON last.number = line.head
)
SELECT json_group_array(json_array(task, routing_key))
FROM line JOIN perdure_jobs ON perdure_jobs.number = line.head;

-- name: in_paused_queues
-- Those of some jobs whose queue is paused.
SELECT json_group_array(job.number) FROM json_each(?) AS given CROSS JOIN perdure_jobs AS job ON job.number = given.value
WHERE EXISTS (SELECT 1 FROM perdure_queues AS paused WHERE paused.name = job.queue AND paused.paused = 1);

-- name: hold_up
-- Let no claim along lines read these jobs until their queue is resumed.
UPDATE perdure_jobs SET held_up = 1 WHERE number IN (SELECT value FROM json_each(?));

-- name: line
-- One line in the order of a claim, without jobs that have expired, that a newer version wrote for itself, or that a claim has
-- met in a paused queue.
SELECT number, priority, rank, id FROM {whole}
WHERE task = :task{lane} AND routing_key IS :routing_key{lane} AND in_lane = 1 AND state = 'ready'
    AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)
    AND held_up IS NOT 1

-- name: due
-- Of the jobs that promote will make ready: their queues, and those that are under limits.
SELECT json_group_array(DISTINCT queue), json_group_array(id) FILTER (WHERE limits IS NOT NULL) FROM (
    SELECT id, queue, limits FROM perdure_jobs WHERE apart = 'scheduled' AND run_at <= ? ORDER BY run_at, id LIMIT ?);

-- name: promote
-- Scheduled jobs whose time has come become ready, the earliest first.
UPDATE perdure_jobs SET state = 'ready', version = min(version, 4611686018427387904) + 1, parked = limits IS NOT NULL,
    in_lane = CASE WHEN limits IS NULL AND suspect = 0 THEN 1 END,
    apart = CASE WHEN suspect <> 0 THEN 'suspect' END
WHERE number IN (
    SELECT number FROM perdure_jobs WHERE apart = 'scheduled' AND run_at <= ? ORDER BY run_at, id LIMIT ?);

-- name: lane
-- One lane of several in the order of a claim, without jobs that have expired or that a newer version wrote for itself.
SELECT number, priority, rank, id FROM {whole}
WHERE queue = :queue{lane} AND task = :task{lane} AND routing_key IS :routing_key{lane} AND in_lane = 1 AND state = 'ready'
    AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)

-- name: best_of_lane
-- The best jobs of a single lane, as they will be once claimed.
SELECT json_group_array(number), CAST('[' || coalesce(group_concat(record), '') || ']' AS BLOB) FROM (
    SELECT number, {claimed} AS record FROM {whole}
    WHERE queue = :queue AND task = :task AND routing_key IS :routing_key AND in_lane = 1 AND state = 'ready'
        AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)
    ORDER BY priority DESC, rank, id LIMIT :limit)

-- name: best_of_gate
-- The best jobs of a single gate, as they will be once claimed.
SELECT json_group_array(number), CAST('[' || coalesce(group_concat(record), '') || ']' AS BLOB) FROM (
    SELECT number, {claimed} AS record FROM {whole}
    WHERE limits = :limits AND queue = :queue AND task = :task AND routing_key IS :routing_key AND parked = 1 AND suspect = 0
        AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)
    ORDER BY priority DESC, rank, id LIMIT :limit)

-- name: best_of_lanes
-- The best jobs of several lanes, merged by their heads, as they will be once claimed.
SELECT json_group_array(best.number), CAST('[' || coalesce(group_concat({claimed}), '') || ']' AS BLOB) FROM (
    {lanes} ORDER BY priority DESC, rank, id LIMIT :limit) AS best
CROSS JOIN perdure_jobs AS job ON job.number = best.number
CROSS JOIN perdure_bodies AS body ON body.number = best.number

-- name: suspects
-- Suspects in the order of a claim, those under limits or the others.
SELECT json_group_array(json_array(number, priority, rank, id, limits, queue, task, routing_key)) FROM (
    SELECT number, priority, rank, id, limits, queue, task, routing_key FROM {whole}
    WHERE apart = 'suspect' AND parked = ?
        AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > ? OR started_at IS NOT NULL)
    ORDER BY priority DESC, rank, id);

-- name: by_number
-- Jobs by their row numbers in the given order, as they will be once claimed.
SELECT json_group_array(job.number), CAST('[' || coalesce(group_concat({claimed}), '') || ']' AS BLOB)
FROM json_each(:numbers) AS wanted
CROSS JOIN perdure_jobs AS job ON job.number = wanted.value
CROSS JOIN perdure_bodies AS body ON body.number = wanted.value

-- name: take
-- Claimed jobs are running now.
UPDATE perdure_jobs SET
    state = 'running', version = min(version, 4611686018427387904) + 1, attempt = min(attempt, 4611686018427387904) + 1, stamp = ?, leased_by = ?,
    leased_until = min(lease, 4611686018427387904) + ?, started_at = NULL, in_lane = NULL, apart = NULL, parked = 0,
    holds_key = holds_key = 1 AND (
        SELECT unique_scope FROM perdure_bodies AS body WHERE body.number = perdure_jobs.number) IS NOT 'waiting'
WHERE number IN (SELECT value FROM json_each(?));

-- name: take_from_lane
-- The same of usual jobs from a lane, whose rows lie side by side: it touches no index but those of lanes and holds.
UPDATE perdure_jobs SET
    state = 'running', version = min(version, 4611686018427387904) + 1, attempt = min(attempt, 4611686018427387904) + 1, stamp = ?, leased_by = ?,
    leased_until = min(lease, 4611686018427387904) + ?, in_lane = NULL
WHERE number BETWEEN ? AND ?;

-- name: take_from_gate
-- The same of usual jobs from a gate, in whose place `parked` says where they stand.
UPDATE perdure_jobs SET
    state = 'running', version = min(version, 4611686018427387904) + 1, attempt = min(attempt, 4611686018427387904) + 1, stamp = ?, leased_by = ?,
    leased_until = min(lease, 4611686018427387904) + ?, parked = 0
WHERE number BETWEEN ? AND ?;
