-- name: remove_stray_bodies
-- Bodies with higher numbers than any job: a new job would get the number of one of them.
DELETE FROM perdure_bodies WHERE number > coalesce((SELECT max(number) FROM perdure_jobs), 0);

-- name: insert_jobs
-- Jobs with any fields.
WITH input (id, task, queue, state, in_lane, index_state, priority, rank, run_at, parked, lease, expires_at, routing_key, unique_key,
    holds_key, limits) AS (VALUES {values})
INSERT INTO perdure_jobs (
    id, task, queue, state, in_lane, index_state, priority, rank, run_at, parked, lease, expires_at, routing_key, unique_key,
    holds_key, limits, created_at, version, attempt, failures, losses, suspect, hidden)
SELECT id, task, queue, state, in_lane, index_state, priority, rank, run_at, parked, lease, expires_at, routing_key, unique_key,
    holds_key, limits, ?, 1, 0, 0, 0, 0, 0
FROM input WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: insert_bodies
-- Their bodies, unless they were stored before.
WITH input (id, payload, policy, key, tenant, tags, meta, unique_scope, chain_id, after, run_when, waits, min_version)
    AS (VALUES {values})
INSERT INTO perdure_bodies (
    number, payload, policy, key, tenant, tags, meta, unique_scope, chain_id, after, run_when, waits, min_version)
SELECT job.number, payload, policy, key, tenant, tags, meta, unique_scope, chain_id, after, run_when, waits, min_version
FROM input CROSS JOIN perdure_jobs AS job ON job.id = input.id
WHERE true
ON CONFLICT (number) DO NOTHING;

-- name: insert_keys
-- Keys of scope any and window, with the jobs that took them.
WITH input (key, job, ends) AS (VALUES {values})
INSERT OR REPLACE INTO perdure_keys (key, job, ends, starts) SELECT key, job, ends, ? FROM input;

-- name: special_queues
-- The queues that are bounded or fair; whether a policy is stored; and whether there are bodies with higher numbers than
-- any job.
SELECT json_group_array(json_array(name, max_depth, on_full, drop_below, fair, weights)),
    EXISTS (SELECT 1 FROM perdure_policies WHERE number = ?),
    coalesce((SELECT max(number) FROM perdure_bodies) > coalesce((SELECT max(number) FROM perdure_jobs), 0), 0)
FROM perdure_queues WHERE max_depth IS NOT NULL OR fair = 1;

-- name: known
-- Which of these ids are stored.
SELECT json_group_array(id) FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: followable
-- Which of these ids are stored, without those that were deleted before they had succeeded.
SELECT json_group_array(id) FROM perdure_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND (hidden = 0 OR state IN ('succeeded', 'skipped'));

-- name: held_keys
-- Who holds these keys of scope waiting or active.
SELECT unique_key, id FROM perdure_jobs WHERE holds_key = 1 AND unique_key IN (VALUES {values});

-- name: kept_keys
-- Who took these keys of scope any or window, the latest last.
SELECT key, job FROM perdure_keys WHERE key IN (VALUES {values}) AND (ends IS NULL OR ends > ?) ORDER BY starts;

-- name: depth
-- Jobs of a queue that wait, counted no further than needed.
SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT 1 FROM perdure_jobs WHERE queue = :queue AND in_lane = 1
        UNION ALL
        SELECT 1 FROM perdure_jobs WHERE queue = :queue AND parked = 1 AND suspect = 0
        UNION ALL
        SELECT 1 FROM perdure_jobs
        WHERE queue = :queue AND index_state IN ('suspect', 'scheduled', 'blocked')
    ) LIMIT :most
);
