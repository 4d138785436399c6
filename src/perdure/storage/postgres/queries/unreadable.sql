-- name: beside
-- What stands beside a record: who holds it for how long, and where it waits.
h.id IS NOT NULL, h.lease, coalesce(h.ended, false), o.id IS NOT NULL, w.id IS NOT NULL, w.state, w.expires_at, w.urgency, w.queue, w.task, w.route,
    w.gate::text, w.parked

-- name: rows
-- Jobs with what stands beside them.
SELECT {record}, {beside} FROM {schema}.jobs j {moving_by_id} WHERE j.id = ANY(%(ids)s::uuid[]) ORDER BY j.id;

-- name: next_rows
-- The next jobs behind an id.
SELECT {record}, {beside}
FROM (SELECT * FROM {schema}.jobs WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer) AS j {moving_by_id}
ORDER BY j.id;

-- name: silent_waiting
-- Of the next waiting jobs behind an id, those that no claim or promotion can find; and the last that was looked at.
WITH page AS MATERIALIZED (
    SELECT id, state, run_at, parked, gate FROM {schema}.waiting
    WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer
)
SELECT page.id::text, false FROM page
WHERE state NOT IN ('ready', 'scheduled', 'blocked') OR (state = 'scheduled' AND run_at IS NULL)
    OR parked <> (gate IS NOT NULL AND state = 'ready')
UNION ALL SELECT (SELECT page.id::text FROM page ORDER BY page.id OFFSET %(limit)s::integer - 1), true;

-- name: silent_jobs
-- Of the next jobs behind an id, those without a moving row; and the last that was looked at.
WITH page AS MATERIALIZED (
    SELECT id FROM {schema}.jobs WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer
)
SELECT page.id::text, false FROM page
WHERE NOT EXISTS (SELECT 1 FROM {schema}.outcomes WHERE outcomes.id = page.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = page.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.holds WHERE holds.id = page.id)
UNION ALL SELECT (SELECT page.id::text FROM page ORDER BY page.id OFFSET %(limit)s::integer - 1), true;

-- name: make_due
-- Scheduled jobs without the time at which they are due.
UPDATE {schema}.waiting SET run_at = rank WHERE id = ANY(%(ids)s::uuid[]) AND state = 'scheduled' AND run_at IS NULL;

-- name: live_ids
-- The next jobs behind an id that wait or run.
(SELECT id::text FROM {schema}.waiting WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer)
UNION (SELECT id::text FROM {schema}.holds WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer)
ORDER BY 1 LIMIT %(limit)s::integer;

-- name: lock
-- Moving rows of jobs, locked in the order of their ids.
SELECT id::text FROM {schema}.{table} WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: remove_strays
-- Of the next moving rows behind an id, those without a job are removed. Gives each of these, and the last that was looked at.
WITH page AS MATERIALIZED (
    SELECT id FROM {schema}.{table} WHERE (%(behind)s::uuid IS NULL OR id > %(behind)s::uuid) ORDER BY id LIMIT %(limit)s::integer
),
gone AS (
    DELETE FROM {schema}.{table} AS stray
    WHERE stray.id = ANY(ARRAY(
        SELECT page.id FROM page WHERE NOT EXISTS (SELECT 1 FROM {schema}.jobs WHERE jobs.id = page.id)))
    RETURNING stray.id::text AS id, row_to_json(stray)::text AS raw
)
SELECT gone.id, gone.raw FROM gone
UNION ALL SELECT (SELECT page.id::text FROM page ORDER BY page.id OFFSET %(limit)s::integer - 1), NULL;

-- name: put_in_place
-- Where a job waits, by what it says of itself.
UPDATE {schema}.waiting SET urgency = %(urgency)s::integer, queue = %(queue)s::text, task = %(task)s::text,
    route = %(route)s::text, gate = %(gate)s::uuid, parked = %(parked)s::boolean
WHERE id = %(id)s::uuid;

-- name: keep
-- Rows as they were found.
INSERT INTO {schema}.unreadable (at, id, place, fields, raw)
SELECT {now}, id, place, fields, raw
FROM unnest(%(ids)s::text[], %(places)s::text[], %(fields)s::text[], %(raws)s::text[]) WITH ORDINALITY
    AS given (id, place, fields, raw, number)
ORDER BY number;

-- name: kept
-- What was set aside, the oldest first.
SELECT id, at, place, fields, raw FROM {schema}.unreadable ORDER BY number LIMIT %(limit)s::integer;

-- name: kept_of
-- What was set aside of these jobs, the oldest first.
SELECT id, at, place, fields, raw FROM {schema}.unreadable WHERE id = ANY(%(ids)s::text[])
ORDER BY number LIMIT %(limit)s::integer;

-- name: now
-- The time.
SELECT {now};

-- name: lines
-- The log lines of jobs, oldest first.
SELECT job::text, line FROM {schema}.log WHERE job = ANY(%(ids)s::uuid[]) ORDER BY job, number;

-- name: unsettle
-- Jobs that others wait for are to be looked at.
INSERT INTO {schema}.unresolved (parent)
SELECT DISTINCT parent FROM {schema}.edges WHERE parent = ANY(%(ids)s::uuid[]) AND open;

-- name: free_keys
-- Keys that are occupied by jobs which do not know of it.
DELETE FROM {schema}.held_keys AS held WHERE held.key = ANY(ARRAY(
    SELECT given.key FROM (SELECT key, job FROM {schema}.held_keys LIMIT %(limit)s::integer) AS given
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.waiting AS w WHERE w.id = given.job AND w.held_key = given.key)
        AND NOT EXISTS (SELECT 1 FROM {schema}.holds AS h WHERE h.id = given.job AND h.held_key = given.key)
        AND NOT EXISTS (SELECT 1 FROM {schema}.outcomes AS o WHERE o.id = given.job AND o.held_key = given.key)));
