-- name: register
-- Gates of parked jobs. A new one is open unless its queue is paused; each knows the claim order of its best job.
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

-- name: store_starts
-- The starts of keys under a rate.
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
-- Close the gates with these limits.
WITH input (limits, closed_by) AS (VALUES {values})
UPDATE perdure_gates SET closed_by = input.closed_by FROM input
WHERE perdure_gates.limits = input.limits AND perdure_gates.closed_by <> 'paused';

-- name: closers
-- Limits that may have room again: those that wait for an end, and some of those whose time has come.
SELECT limits, opens_at FROM perdure_full_limits WHERE opens_at IS NULL
UNION ALL
SELECT limits, opens_at FROM (
    SELECT limits, opens_at FROM perdure_full_limits WHERE opens_at IS NOT NULL AND opens_at <= ? ORDER BY opens_at LIMIT ?);

-- name: rates
-- Limits that a rate keeps closed, the first to open first.
SELECT limits, opens_at FROM perdure_full_limits WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT ?;

-- name: store_closers
-- Limits that are used up.
INSERT OR REPLACE INTO perdure_full_limits (limits, closed_at, opens_at) VALUES {values};

-- name: clock_went_back
-- Rates that were used up later than now.
DELETE FROM perdure_full_limits WHERE opens_at IS NOT NULL AND closed_at > ?;

-- name: reopen_orphans
-- Gates that are closed by nothing.
UPDATE perdure_gates SET closed_by = ''
WHERE closed_by NOT IN ('', 'paused') AND NOT EXISTS (SELECT 1 FROM perdure_full_limits WHERE perdure_full_limits.limits = closed_by);

-- name: remove_closer
-- Limits that close no gate any more.
DELETE FROM perdure_full_limits WHERE limits = ?;

-- name: jobs_at_gate
-- The best jobs of a gate that may run, in the order of a claim.
SELECT * FROM (
    SELECT ? AS gate, number, priority, rank, id FROM {whole}
    WHERE limits = ? AND queue = ? AND task = ? AND routing_key IS ? AND parked = 1 AND suspect = 0
        AND {may_run}
    ORDER BY priority DESC, rank, id LIMIT ?)

-- name: jobs_at_gates
-- The best jobs of several gates, as one text.
SELECT json_group_array(json_array(gate, json_array(number, json_array(-priority, rank, id)))) FROM ({gates})

-- name: move_heads
-- The claim order of the best jobs of gates.
WITH input (number, priority, rank, head) AS (VALUES {values})
UPDATE perdure_gates SET priority = input.priority, rank = input.rank, head = input.head
FROM input WHERE perdure_gates.number = input.number;

-- name: remove_empty
-- Gates at which no job waits.
DELETE FROM perdure_gates
WHERE number IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
    SELECT 1 FROM perdure_jobs AS job
    WHERE job.limits = perdure_gates.limits AND job.queue = perdure_gates.queue AND job.task = perdure_gates.task
        AND job.routing_key IS perdure_gates.routing_key
        AND job.parked = 1 AND job.suspect = 0);
