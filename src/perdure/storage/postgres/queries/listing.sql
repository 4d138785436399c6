-- name: get
-- Jobs by id.
SELECT {record} FROM {schema}.jobs j {moving_by_id} WHERE j.id = ANY(%(ids)s::uuid[]);

-- name: find
-- Visible jobs that fit, newest first.
SELECT {record} FROM {schema}.jobs j {moving}
WHERE NOT coalesce(o.hidden, false) AND {fitting}
ORDER BY j.created_at DESC, j.id DESC LIMIT %(limit)s::integer;

-- name: count
-- How many visible jobs fit.
SELECT count(*) FROM {schema}.jobs j {moving} WHERE NOT coalesce(o.hidden, false) AND {fitting};

-- name: count_states
-- How many visible jobs are in these states.
SELECT (SELECT count(*) FROM {schema}.outcomes WHERE state = ANY(%(states)s::text[]) AND NOT hidden)
    + (SELECT count(*) FROM {schema}.waiting WHERE state = ANY(%(states)s::text[]))
    + (SELECT count(*) FROM {schema}.holds WHERE NOT ended AND 'running' = ANY(%(states)s::text[]));

-- name: few_live
-- Whether the jobs in these states that have not ended are few enough to be looked through.
SELECT count(*) < %(few)s::integer FROM (
    SELECT 1 FROM {schema}.waiting WHERE state = ANY(%(states)s::text[])
    UNION ALL SELECT 1 FROM {schema}.holds WHERE 'running' = ANY(%(states)s::text[])
    LIMIT %(few)s::integer) AS part;

-- name: log
-- A job's log, oldest line first.
SELECT line FROM {schema}.log WHERE job = %(id)s::uuid ORDER BY number;

-- name: queues
-- The settings of queues, and what waits in each.
SELECT coalesce(q.name, d.queue), coalesce(q.paused, false), q.max_depth, coalesce(q.on_full, 'reject'), q.drop_below,
    coalesce(q.fair, false), q.weights, coalesce(d.depth, 0), CASE WHEN d.oldest IS NOT NULL THEN greatest(0, {now} - d.oldest) END
FROM {schema}.queues AS q FULL JOIN (
    SELECT queue, count(*) AS depth, min(coalesce(run_at, rank)) FILTER (WHERE state = 'ready') AS oldest
    FROM {schema}.waiting GROUP BY queue
) AS d ON d.queue = q.name
ORDER BY 1;

-- name: rooms
-- How many more jobs each bounded queue takes, counted no further than that.
SELECT name, max_depth, on_full, drop_below, max_depth - (
    SELECT count(*) FROM (
        SELECT 1 FROM {schema}.waiting AS w
        WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(q.name, 0) AND w.queue = q.name
        UNION ALL
        SELECT 1 FROM {schema}.waiting WHERE queue = q.name AND (state <> 'ready' OR parked OR suspect)
        LIMIT q.max_depth
    ) AS part)
FROM {schema}.queues AS q WHERE max_depth IS NOT NULL;

-- name: configure
-- Write a queue's settings; whether it is paused stays.
INSERT INTO {schema}.queues (name, max_depth, on_full, drop_below, fair, weights)
VALUES (%(name)s::text, %(max_depth)s::bigint, %(on_full)s::text, %(drop_below)s::bigint, %(fair)s::boolean,
    %(weights)s::text)
ON CONFLICT (name) DO UPDATE SET max_depth = excluded.max_depth, on_full = excluded.on_full,
    drop_below = excluded.drop_below, fair = excluded.fair, weights = excluded.weights;

-- name: pause
-- Pause or resume a queue.
INSERT INTO {schema}.queues (name, paused) VALUES (%(name)s::text, %(paused)s::boolean)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;

-- name: turn
-- Wait for claims of limited jobs: nobody else writes gates.
SELECT pg_advisory_xact_lock(hashtextextended('perdure limits {schema}', 0));

-- name: pause_gates
-- Take the open gates of a paused queue out of the index of open gates.
UPDATE {schema}.limit_gates SET paused = true
WHERE closed_by IS NULL AND NOT paused AND hashtextextended(queue, 0) = hashtextextended(%(name)s::text, 0)
    AND queue = %(name)s::text;

-- name: resume_gates
-- Let claims read the gates of a resumed queue again.
UPDATE {schema}.limit_gates SET paused = false WHERE paused AND queue = %(name)s::text;

-- name: resume_jobs
-- Let claims along lines read the jobs of a resumed queue again.
UPDATE {schema}.waiting SET in_paused_queue = NULL WHERE in_paused_queue AND queue = %(name)s::text;

-- name: claims_under_way
-- Transactions that are about to hold jobs, or to let them go.
SELECT virtualtransaction FROM pg_catalog.pg_locks
WHERE locktype = 'relation' AND relation = '{schema}.holds'::regclass AND mode = 'RowExclusiveLock'
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());

-- name: beat
-- Note a worker's sign of life.
INSERT INTO {schema}.workers (id, started_at, seen_at, running, about)
VALUES (%(id)s::text, %(started_at)s::bigint, {now}, %(running)s::bigint, %(about)s::text)
ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at, seen_at = excluded.seen_at,
    running = excluded.running, about = excluded.about;

-- name: leave
-- A worker has stopped.
DELETE FROM {schema}.workers WHERE id = %(id)s::text;

-- name: forget_workers
-- Workers that were not seen for long.
DELETE FROM {schema}.workers WHERE seen_at < {now} - %(within)s::bigint;

-- name: workers
-- The workers, by id.
SELECT id, started_at, seen_at, running, about FROM {schema}.workers ORDER BY id;

-- name: now
-- The server's clock.
SELECT {now};
