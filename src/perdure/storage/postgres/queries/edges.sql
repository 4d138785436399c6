-- name: take
-- Lines of the list, the oldest or the newest first; those that another session has locked are left to it.
SELECT number, parent::text, child::text, mark::text FROM {schema}.unresolved
WHERE NOT unranked ORDER BY number {direction} LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED;

-- name: edges
-- The open edges of these parents and children, behind the marks of each.
SELECT given.number, edge.parent::text, edge.child::text, edge.finished
FROM unnest(%(numbers)s::bigint[], %(parents)s::uuid[], %(children)s::uuid[], %(marks)s::uuid[])
        AS given (number, parent, child, mark)
    CROSS JOIN LATERAL (
        (SELECT down.parent, down.child, down.finished FROM {schema}.edges AS down
            WHERE down.parent = given.parent AND down.child > given.mark AND down.open
            ORDER BY down.child LIMIT %(limit)s::integer)
        UNION ALL
        (SELECT up.parent, up.child, up.finished FROM {schema}.edges AS up
            WHERE up.child = given.child AND up.parent > given.mark AND up.open
            ORDER BY up.parent LIMIT %(limit)s::integer)) AS edge
LIMIT %(limit)s::integer;

-- name: lock_waiting
-- Jobs that wait, locked in the order of their ids: which of them are followed, and which are blocked.
SELECT id::text, followed, state = 'blocked' FROM {schema}.waiting WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: lock_holds
-- Jobs that run, locked in the order of their ids.
SELECT id::text, followed FROM {schema}.holds WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: lock_outcomes
-- Jobs that have ended, locked in the order of their ids.
SELECT id::text, followed, state, next_id::text, hidden FROM {schema}.outcomes WHERE id = ANY(%(ids)s::uuid[])
ORDER BY id FOR UPDATE;

-- name: known
-- Which of these ids are on record.
SELECT id::text FROM {schema}.jobs WHERE id = ANY(%(ids)s::uuid[]);

-- name: mark_followed
-- Jobs that others wait for.
UPDATE {schema}.{table} SET followed = true WHERE id = ANY(%(ids)s::uuid[]);

-- name: close
-- Close edges; returns the children of those that were open.
UPDATE {schema}.edges SET open = false
WHERE ctid = ANY(ARRAY(
    SELECT edge.place FROM unnest(%(parents)s::uuid[], %(children)s::uuid[]) AS given (parent, child)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM {schema}.edges
            WHERE edges.parent = given.parent AND edges.child = given.child AND edges.open OFFSET 0) AS edge))
RETURNING parent::text, child::text;

-- name: close_all
-- All edges of children that are not blocked any more.
UPDATE {schema}.edges SET open = false WHERE child = ANY(%(ids)s::uuid[]) AND open;

-- name: lead
-- Edges that lead from other jobs from now on, which must be resolved; returns those that were not open already.
WITH led AS (
    INSERT INTO {schema}.edges (parent, child, finished)
    SELECT parent, child, finished
    FROM unnest(%(parents)s::uuid[], %(children)s::uuid[], %(finished)s::boolean[]) AS given (parent, child, finished)
    ON CONFLICT (parent, child) DO UPDATE SET open = true WHERE NOT edges.open
    RETURNING parent, child
),
noted AS (INSERT INTO {schema}.unresolved (parent) SELECT DISTINCT parent FROM led)
SELECT parent::text, child::text FROM led;

-- name: let_go
-- Children of whose edges so many were closed. At the last they are ready and due now, or scheduled, and those under limits
-- parked. A share of a fair queue stays.
WITH moment AS MATERIALIZED (SELECT {now} AS now),
freed AS (
    UPDATE {schema}.waiting SET (waits, version, state, parked, run_at, rank) = (
        SELECT going.waits, coalesce(waiting.version, 1) + (going.waits <= 0)::integer,
            CASE WHEN going.waits > 0 THEN 'blocked' WHEN going.later THEN 'scheduled' ELSE 'ready' END,
            waiting.gate IS NOT NULL AND going.waits <= 0 AND NOT going.later,
            CASE WHEN going.waits > 0 OR going.later THEN going.run_at ELSE going.now END,
            CASE WHEN going.waits > 0 OR going.later OR waiting.rank <> going.run_at THEN waiting.rank ELSE going.now END
        FROM (
            SELECT moment.now, coalesce(waiting.run_at, waiting.rank) AS run_at,
                coalesce(waiting.run_at, waiting.rank) > moment.now AND EXISTS (
                    SELECT 1 FROM {schema}.jobs
                    WHERE jobs.id = waiting.id AND coalesce(waiting.run_at, waiting.rank) > jobs.created_at) AS later,
                coalesce(waiting.waits, 0) - (%(closed)s::integer[])[array_position(%(ids)s::uuid[], waiting.id)] AS waits
            FROM moment
        ) AS going)
    WHERE id = ANY(%(ids)s::uuid[])
    RETURNING state, queue, task, route, gate, parked
),
{parking}
SELECT DISTINCT queue FROM freed WHERE state <> 'blocked';

-- name: parking
-- Word of lanes in which jobs are parked.
news AS (
    INSERT INTO {schema}.limit_notices (gate, queue, task, route)
    SELECT DISTINCT gate, queue, task, route FROM freed WHERE parked
)

-- name: wait_for_nobody
-- Children that are about to be cancelled.
UPDATE {schema}.waiting SET waits = NULL WHERE id = ANY(%(ids)s::uuid[]);

-- name: forget
-- Lines that are done.
DELETE FROM {schema}.unresolved WHERE number = ANY(%(numbers)s::bigint[]);

-- name: go_on_behind
-- One parent or child has more edges: the next step begins behind this one.
UPDATE {schema}.unresolved SET mark = %(mark)s::uuid WHERE number = %(number)s::bigint;

-- name: left
-- Whether there is anything to resolve.
SELECT EXISTS (SELECT 1 FROM {schema}.unresolved);

-- name: followers
-- Who still waits for these jobs.
SELECT edge.parent::text, edge.child::text
FROM unnest(%(ids)s::uuid[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT parent, child FROM {schema}.edges WHERE edges.parent = given.id AND edges.open OFFSET 0) AS edge
ORDER BY edge.parent, edge.child;

-- name: unranked
-- Jobs that have no share of their fair queue yet.
SELECT unresolved.number, unresolved.child::text FROM {schema}.unresolved
WHERE unresolved.unranked ORDER BY unresolved.number LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED;

-- name: to_place
-- These of them that still wait, locked, as they were enqueued.
SELECT w.id::text, w.task, w.queue, -1 - w.urgency, coalesce(w.run_at, w.rank), (
        SELECT jobs.tenant FROM {schema}.jobs WHERE jobs.id = w.id)
FROM {schema}.waiting AS w WHERE w.id = ANY(%(ids)s::uuid[]) ORDER BY w.id FOR UPDATE OF w;

-- name: place
-- Their shares. Those that wait for nothing else are ready, or scheduled.
WITH freed AS (
    UPDATE {schema}.waiting SET
        run_at = CASE WHEN waiting.state <> 'blocked' OR waiting.waits > 0 THEN coalesce(waiting.run_at, waiting.rank)
            ELSE greatest(coalesce(waiting.run_at, waiting.rank), {now}) END,
        rank = coalesce((%(ranks)s::bigint[])[array_position(%(ids)s::uuid[], waiting.id)], waiting.rank),
        (version, state, parked) = (
            SELECT coalesce(waiting.version, 1) + (waiting.state <> going.state)::integer, going.state,
                waiting.gate IS NOT NULL AND going.state = 'ready'
            FROM (
                SELECT CASE WHEN waiting.state <> 'blocked' OR waiting.waits > 0 THEN waiting.state
                    WHEN coalesce(waiting.run_at, waiting.rank) > {now} THEN 'scheduled' ELSE 'ready' END AS state
            ) AS going)
    WHERE id = ANY(%(ids)s::uuid[])
    RETURNING state, queue, task, route, gate, parked
),
{parking}
SELECT DISTINCT queue FROM freed WHERE state <> 'blocked';

-- name: placed
-- They have their ranks; their edges are resolved next.
UPDATE {schema}.unresolved SET unranked = false WHERE number = ANY(%(numbers)s::bigint[]);
