-- name: insert_alike
-- Jobs that differ in nothing but their payloads, a JSON object by their ids.
INSERT INTO holdfast_jobs (
    id, task, queue, state, priority, rank, payload, version, attempt, failures, losses, policy, lease, limits,
    created_at, run_at, suspect, parked, hidden, holds_key, run_when, waits, min_version)
SELECT given.key, ?2, ?3, ?8, ?4, ?9, given.value, 1, 0, 0, 0, ?5, ?6, ?7, ?10, ?9, 0, ?11, 0, 0, 'succeeded', 0,
    {row_version}
FROM json_each(?1) AS given WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: insert_full
-- Jobs with everything that a job may have.
WITH given (id, task, queue, state, priority, rank, run_at, parked, payload, policy, lease, expires_at, key,
    tenant, routing_key, tags, meta, unique_key, unique_scope, holds_key,
    chain_id, after, run_when, waits, limits, min_version) AS (VALUES {values})
INSERT INTO holdfast_jobs (
    id, task, queue, state, priority, rank, payload, version, attempt, failures, losses, policy, lease, created_at,
    run_at, expires_at, suspect, parked, hidden, key, tenant, routing_key, tags, meta, unique_key, unique_scope, holds_key,
    chain_id, after, run_when, waits, limits, min_version)
SELECT id, task, queue, state, priority, rank, payload, 1, 0, 0, 0, policy, lease, ?,
    run_at, expires_at, 0, parked, 0, key, tenant, routing_key, tags, meta, unique_key, unique_scope, holds_key,
    chain_id, after, run_when, waits, limits, min_version
FROM given WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: insert_policies
-- What jobs have in common; mostly it is on record.
INSERT INTO holdfast_policies (number, max_attempts, timeout, backoff, retention, dead_retention) VALUES {values}
ON CONFLICT DO NOTHING;

-- name: insert_keys
-- Keys of scope any and window, with the jobs that took them.
WITH given (key, job, ends) AS (VALUES {values})
INSERT OR REPLACE INTO holdfast_keys (key, job, ends, starts) SELECT key, job, ends, ? FROM given;

-- name: special_queues
-- The queues that hold only so many jobs, and those that are fair; and whether a policy is on record.
SELECT json_group_array(json_array(name, max_depth, on_full, drop_below, fair, weights)),
    EXISTS (SELECT 1 FROM holdfast_policies WHERE number = ?)
FROM holdfast_queues WHERE max_depth IS NOT NULL OR fair = 1;

-- name: known
-- Which of these ids are on record.
SELECT json_group_array(id) FROM holdfast_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: followable
-- Which of these ids are on record, without those that were deleted before they were done.
SELECT json_group_array(id) FROM holdfast_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND (hidden = 0 OR state IN ('succeeded', 'skipped'));

-- name: held_keys
-- Who holds these keys of scope waiting or active.
SELECT unique_key, id FROM holdfast_jobs WHERE holds_key = 1 AND unique_key IN (VALUES {values});

-- name: kept_keys
-- Who took these keys of scope any or window, the latest last.
SELECT key, job FROM holdfast_keys WHERE key IN (VALUES {values}) AND (ends IS NULL OR ends > ?) ORDER BY starts;

-- name: depth
-- Jobs of a queue that wait, counted no further than needed.
SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT 1 FROM holdfast_jobs WHERE queue = ?1 AND state = 'ready' AND parked = 0 AND suspect = 0
        UNION ALL
        SELECT 1 FROM holdfast_jobs WHERE queue = ?1 AND state = 'ready' AND parked = 1 AND suspect = 0
        UNION ALL
        SELECT 1 FROM holdfast_jobs
        WHERE queue = ?1 AND (state IN ('scheduled', 'blocked') OR (state = 'ready' AND suspect <> 0))
    ) LIMIT ?2
);
