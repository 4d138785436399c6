-- name: insert_plain
-- Jobs of one shape (task, queue, priority, budget, times, policies) that wait for nothing but a worker or a time. None
-- of them is stored when the queue is bounded or fair. An id that is known already makes it fail.
WITH stored AS (
    INSERT INTO {schema}.jobs (
        created_at, run_at, lease, timeout, max_attempts, priority, id, task, queue, payload, backoff, retention,
        dead_retention)
    SELECT clock.now, coalesce(given.at, clock.now + given.delay), %(lease)s::bigint, %(timeout)s::bigint,
        %(max_attempts)s::bigint, %(priority)s::integer, given.id, %(task)s::text, %(queue)s::text, given.payload,
        %(backoff)s::text, %(retention)s::text, %(dead_retention)s::text
    FROM unnest(
            %(ids)s::uuid[], string_to_array(%(payloads)s::text, chr(30)), %(delays)s::bigint[], %(ats)s::bigint[]
        ) AS given (id, payload, delay, at)
        CROSS JOIN (SELECT {now} AS now) AS clock
    WHERE NOT EXISTS (
        SELECT 1 FROM {schema}.queues WHERE name = %(queue)s::text AND (max_depth IS NOT NULL OR fair))
    RETURNING id, created_at, run_at
)
INSERT INTO {schema}.waiting (rank, run_at, urgency, id, state, queue, task, route)
SELECT coalesce(run_at, created_at), CASE WHEN run_at > created_at THEN run_at END, -1 - %(priority)s::integer, id,
    CASE WHEN run_at > created_at THEN 'scheduled' ELSE 'ready' END, %(queue)s::text, %(task)s::text, ''
FROM stored;

-- name: lock_queues
-- Enqueues into a bounded or fair queue take turns, so that counts and shares stay true until they commit.
SELECT name, max_depth, on_full, drop_below, fair, weights FROM {schema}.queues
WHERE (max_depth IS NOT NULL AND %(bounded)s::boolean OR fair AND %(placing)s::boolean)
    AND name = ANY(%(queues)s::text[]) ORDER BY name FOR UPDATE;

-- name: depth
-- Jobs of a queue that wait, counted no further than needed.
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.waiting AS w
    WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(%(queue)s::text, 0)
        AND w.queue = %(queue)s::text
    UNION ALL
    SELECT 1 FROM {schema}.waiting WHERE queue = %(queue)s::text AND (state <> 'ready' OR parked OR suspect)
    LIMIT %(enough)s::bigint
) AS part;

-- name: known
-- Which of these ids are on record.
SELECT id::text FROM {schema}.jobs WHERE id = ANY(%(ids)s::uuid[]);

-- name: followable
-- Which of these ids are on record, without those that were deleted before they were done.
SELECT id::text FROM {schema}.jobs WHERE id = ANY(%(ids)s::uuid[])
EXCEPT
SELECT id::text FROM {schema}.outcomes
WHERE id = ANY(%(ids)s::uuid[]) AND hidden AND state NOT IN ('succeeded', 'skipped');

-- name: keep
-- Ended jobs that are not to be pruned until this transaction is over.
SELECT id FROM {schema}.outcomes WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR KEY SHARE;

-- name: held_keys
-- Who occupies these keys of scope waiting or active.
SELECT key, job::text FROM {schema}.held_keys WHERE key = ANY(%(keys)s::text[]);

-- name: kept_keys
-- Who took these keys of scope any or window, the latest last.
SELECT key, job::text FROM {schema}.kept_keys
WHERE key = ANY(%(keys)s::text[]) AND (ends IS NULL OR ends > {now}) ORDER BY starts;

-- name: take_held
-- Keys of scope waiting and active that nobody occupies, in the order of the keys.
INSERT INTO {schema}.held_keys (key, job)
SELECT key, job FROM unnest(%(keys)s::text[], %(ids)s::uuid[]) AS given (key, job) ORDER BY key
ON CONFLICT (key) DO NOTHING;

-- name: take_kept
-- Keys of scope any and window that are free, in the order of the keys.
INSERT INTO {schema}.kept_keys (key, starts, ends, job)
SELECT given.key, coalesce((SELECT max(last.ends) FROM {schema}.kept_keys AS last WHERE last.key = given.key), 0),
    given.life + {now}, given.job
FROM unnest(%(keys)s::text[], %(ids)s::uuid[], %(lives)s::bigint[]) AS given (key, job, life)
WHERE NOT EXISTS (  -- taken since it was looked for
    SELECT 1 FROM {schema}.kept_keys AS taken WHERE taken.key = given.key AND (taken.ends IS NULL OR taken.ends > {now}))
ORDER BY given.key
ON CONFLICT (key, starts) DO NOTHING;
