-- name: get
-- Jobs by id.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM {whole} WHERE id IN (SELECT value FROM json_each(?));

-- name: find
-- Jobs that match, newest first.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM {jobs} WHERE {matching} ORDER BY created_at DESC, id DESC LIMIT ?);

-- name: slice_end
-- Where a slice of the history ends.
SELECT created_at, id FROM perdure_jobs INDEXED BY perdure_jobs_created {begin}
ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET ?;

-- name: count
-- How many jobs match.
SELECT count(*) FROM {jobs} WHERE {matching};

-- name: few_live
-- Whether the jobs that have not ended are few enough to be read.
SELECT count(*) < :few FROM (SELECT 1 FROM ({live}) LIMIT :few);

-- name: live_ready
-- Jobs in a lane.
SELECT number FROM perdure_jobs WHERE in_lane = 1;

-- name: live_parked
-- Jobs at a gate.
SELECT number FROM perdure_jobs WHERE parked = 1 AND suspect = 0;

-- name: live_aside
-- Jobs that wait, but neither in a lane nor at a gate.
SELECT number FROM perdure_jobs WHERE index_state IN ('suspect', 'scheduled', 'blocked');

-- name: live_held
-- Jobs that are held.
SELECT number FROM perdure_jobs WHERE leased_until IS NOT NULL AND limits IS NULL
UNION ALL
SELECT number FROM perdure_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL;

-- name: log
-- A job's log lines, oldest first.
SELECT CAST(line AS BLOB) FROM perdure_log WHERE job = ? ORDER BY number;

-- name: queues
-- The settings of queues.
SELECT name, paused, max_depth, on_full, drop_below, fair, weights FROM perdure_queues;

-- name: depths
-- Waiting jobs of each queue, and since when the oldest ready one has been due (a plain job's rank is its run_at).
SELECT queue, count(*), min(rank), 1 FROM perdure_jobs INDEXED BY perdure_jobs_ready
WHERE in_lane = 1 GROUP BY queue
UNION ALL
SELECT queue, count(*), min(run_at), 0 FROM perdure_jobs INDEXED BY perdure_jobs_parked
WHERE parked = 1 AND suspect = 0 GROUP BY queue
UNION ALL
SELECT queue, count(*), min(CASE state WHEN 'ready' THEN run_at END), 0 FROM perdure_jobs
WHERE index_state IN ('suspect', 'scheduled', 'blocked') GROUP BY queue;

-- name: oldest_of_shared
-- Since when the oldest job in a lane has been due, in queues whose ranks are or were shares.
SELECT queue, min(run_at) FROM perdure_jobs INDEXED BY perdure_jobs_ready
WHERE in_lane = 1 AND queue IN (
    SELECT queue FROM perdure_accounts WHERE payer = '' UNION SELECT name FROM perdure_queues WHERE fair = 1)
GROUP BY queue;

-- name: configure
-- Write a queue's settings; paused stays.
INSERT INTO perdure_queues (name, max_depth, on_full, drop_below, fair, weights) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    max_depth = excluded.max_depth, on_full = excluded.on_full, drop_below = excluded.drop_below,
    fair = excluded.fair, weights = excluded.weights;

-- name: pause
-- Pause or resume a queue.
INSERT INTO perdure_queues (name, paused) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;

-- name: close_gates
-- Close the open gates of a paused queue.
UPDATE perdure_gates SET closed_by = 'paused' WHERE closed_by = '' AND queue = ?;

-- name: open_gates
-- Open the gates that the pause of a queue has closed.
UPDATE perdure_gates SET closed_by = '' WHERE closed_by <> '' AND closed_by = 'paused' AND queue = ?;

-- name: resume
-- Let claims along lines read the jobs of a resumed queue again.
UPDATE perdure_jobs SET in_paused_queue = NULL WHERE in_paused_queue = 1 AND queue = ?;

-- name: heartbeat
-- A worker's sign of life.
INSERT INTO perdure_workers (id, started_at, seen_at, running, about) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    started_at = excluded.started_at, seen_at = excluded.seen_at, running = excluded.running, about = excluded.about;

-- name: remove_worker
-- A worker that has ended.
DELETE FROM perdure_workers WHERE id = ?;

-- name: remove_workers
-- Workers that were not seen for long.
DELETE FROM perdure_workers WHERE seen_at < ?;

-- name: workers
-- The workers.
SELECT id, started_at, seen_at, running, about FROM perdure_workers ORDER BY id;
