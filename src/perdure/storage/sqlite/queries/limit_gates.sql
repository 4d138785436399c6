-- name: know
-- Gates of parked jobs: new ones are open unless their queue is paused, and each knows where its best job stands.
INSERT INTO perdure_gates (limits, queue, task, routing_key, priority, rank, head, closed_by)
SELECT limits, queue, task, routing_key, priority, rank, id,
    CASE WHEN EXISTS (SELECT 1 FROM perdure_queues AS q WHERE q.name = perdure_jobs.queue AND q.paused = 1) THEN 'paused' ELSE '' END
FROM perdure_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND parked = 1 AND suspect = 0
ORDER BY priority DESC, rank, id
ON CONFLICT (limits, queue, task, coalesce('=' || routing_key, '')) DO UPDATE SET
    priority = excluded.priority, rank = excluded.rank, head = excluded.head
WHERE (-excluded.priority, excluded.rank, excluded.head)
    < (-perdure_gates.priority, perdure_gates.rank, perdure_gates.head);

-- name: is_paused
SELECT 1 FROM perdure_queues WHERE paused = 1 AND name = ?;

-- name: running
-- How many jobs carry a hold, by their limits.
SELECT json_group_array(json_array(limits, jobs)) FROM (
    SELECT limits, count(*) AS jobs FROM perdure_jobs INDEXED BY perdure_jobs_limited
    WHERE stamp IS NOT NULL AND limits IS NOT NULL GROUP BY limits);

-- name: starts
-- The starts of keys under a rate.
SELECT key, starts FROM perdure_starts WHERE key IN (VALUES {values});

-- name: note_starts
-- Starts as they are now.
INSERT OR REPLACE INTO perdure_starts (key, starts, ends) VALUES {values};

-- name: lines
-- The tasks and routing keys of open gates, in whatever queue (a loose scan of an index: one seek each, however many gates
-- there are).
WITH RECURSIVE line (head) AS (
    SELECT (
        SELECT number FROM perdure_gates INDEXED BY perdure_gates_line WHERE closed_by = '' ORDER BY task, routing_key LIMIT 1)
    UNION ALL
    SELECT coalesce(
        CASE WHEN last.routing_key IS NULL THEN (
            SELECT number FROM perdure_gates INDEXED BY perdure_gates_line
            WHERE closed_by = '' AND task = last.task AND routing_key >= ''
            ORDER BY routing_key LIMIT 1)
        ELSE (
            SELECT number FROM perdure_gates INDEXED BY perdure_gates_line
            WHERE closed_by = '' AND task = last.task AND routing_key > last.routing_key
            ORDER BY routing_key LIMIT 1)
        END,
        (SELECT number FROM perdure_gates INDEXED BY perdure_gates_line
            WHERE closed_by = '' AND task > last.task ORDER BY task, routing_key LIMIT 1))
    FROM line JOIN perdure_gates AS last ON last.number = line.head
)
SELECT json_group_array(json_array(task, routing_key))
FROM line JOIN perdure_gates ON perdure_gates.number = line.head;

-- name: lanes_of_queue
-- The tasks and routing keys of a queue's open gates.
SELECT json_group_array(json_array(queue, task, routing_key)) FROM (
    SELECT DISTINCT queue, task, routing_key FROM perdure_gates WHERE closed_by = '' AND queue = ?);

-- name: best_open_of_line
-- The best open gates of a line.
SELECT number, limits, queue, task, routing_key, priority, rank, head FROM perdure_gates INDEXED BY perdure_gates_line
WHERE closed_by = '' AND task = ? AND routing_key IS ?
ORDER BY priority DESC, rank, head LIMIT ?;

-- name: best_open
-- The best open gates of a lane.
SELECT number, limits, queue, task, routing_key, priority, rank, head FROM perdure_gates
WHERE closed_by = '' AND queue = ? AND task = ? AND routing_key IS ?
ORDER BY priority DESC, rank, head LIMIT ?;

-- name: few_open
-- Of all gates: whether limits may have room again, up to two open ones, and what runs; as the questions for them would answer.
SELECT EXISTS (SELECT 1 FROM perdure_closers WHERE opens_at IS NULL)
        OR EXISTS (SELECT 1 FROM perdure_closers WHERE opens_at IS NOT NULL AND opens_at <= ?),
    (SELECT json_group_array(json_array(number, limits, queue, task, routing_key, priority, rank, head)) FROM (
        SELECT number, limits, queue, task, routing_key, priority, rank, head FROM perdure_gates
        WHERE closed_by = '' ORDER BY queue LIMIT 2)),
    ({running});

-- name: best_closed
-- The best gates that are closed by some limits.
SELECT number, limits, queue, task, routing_key, priority, rank, head FROM perdure_gates
WHERE closed_by <> '' AND closed_by = ? ORDER BY priority DESC, rank, head LIMIT ?;

-- name: reopen
-- These gates are open, unless their queue is paused.
UPDATE perdure_gates SET closed_by =
    CASE WHEN EXISTS (SELECT 1 FROM perdure_queues AS q WHERE q.name = perdure_gates.queue AND q.paused = 1) THEN 'paused' ELSE '' END
WHERE number IN (SELECT value FROM json_each(?));

-- name: close
-- Gates with these limits are closed by those.
WITH given (limits, closed_by) AS (VALUES {values})
UPDATE perdure_gates SET closed_by = given.closed_by FROM given
WHERE perdure_gates.limits = given.limits AND perdure_gates.closed_by <> 'paused';

-- name: closers
-- Limits that may have room again: those that wait for an end, and some of those whose time has come.
SELECT limits, opens_at FROM perdure_closers WHERE opens_at IS NULL
UNION ALL
SELECT limits, opens_at FROM (
    SELECT limits, opens_at FROM perdure_closers WHERE opens_at IS NOT NULL AND opens_at <= ? ORDER BY opens_at LIMIT ?);

-- name: rates
-- Limits that a rate keeps closed, the first to open first.
SELECT limits, opens_at FROM perdure_closers WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT ?;

-- name: note_closers
-- Limits that are used up.
INSERT OR REPLACE INTO perdure_closers (limits, closed_at, opens_at) VALUES {values};

-- name: clock_went_back
-- Rates that were used up later than now.
DELETE FROM perdure_closers WHERE opens_at IS NOT NULL AND closed_at > ?;

-- name: reopen_orphans
-- Gates that are closed by nothing.
UPDATE perdure_gates SET closed_by = ''
WHERE closed_by NOT IN ('', 'paused') AND NOT EXISTS (SELECT 1 FROM perdure_closers WHERE perdure_closers.limits = closed_by);

-- name: forget_closer
-- No gate is closed by these limits any more.
DELETE FROM perdure_closers WHERE limits = ?;

-- name: places
-- The best jobs of a gate that may run, in the order of a claim.
SELECT * FROM (
    SELECT ? AS gate, number, priority, rank, id FROM {whole}
    WHERE limits = ? AND queue = ? AND task = ? AND routing_key IS ? AND parked = 1 AND suspect = 0
        AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > ? OR started_at IS NOT NULL)
    ORDER BY priority DESC, rank, id LIMIT ?)

-- name: all_places
-- The places of several gates, as one text.
SELECT json_group_array(json_array(gate, json_array(number, json_array(-priority, rank, id)))) FROM ({places})

-- name: move_heads
-- Where the best jobs of gates stand.
WITH given (number, priority, rank, head) AS (VALUES {values})
UPDATE perdure_gates SET priority = given.priority, rank = given.rank, head = given.head
FROM given WHERE perdure_gates.number = given.number;

-- name: forget
-- Gates that nobody waits at.
DELETE FROM perdure_gates
WHERE number IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
    SELECT 1 FROM perdure_jobs AS job
    WHERE job.limits = perdure_gates.limits AND job.queue = perdure_gates.queue AND job.task = perdure_gates.task
        AND job.routing_key IS perdure_gates.routing_key
        AND job.parked = 1 AND job.suspect = 0);
