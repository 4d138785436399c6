-- name: given
-- The jobs in a JSON array, with the instant at which they are put on record: one for all of them.
WITH clock AS MATERIALIZED (SELECT {clock} AS instant)
SELECT job.*, coalesce(job.now, clock.instant) AS created_at,
    coalesce(job.at, coalesce(job.now, clock.instant) + job.delay) AS run_at
FROM clock CROSS JOIN json_to_recordset({parameter}::json) AS job (
    number integer, id uuid, task text, queue text, priority integer, at bigint, delay bigint, now bigint, payload text,
    max_attempts bigint, timeout bigint, lease bigint, backoff text, retention text, dead_retention text, expires bigint,
    key text, tenant text, routing_key text, tags text, meta text, unique_key text, unique_scope text,
    unique_window bigint, chain_id uuid, after text, run_when text, waits integer, limits text, min_version integer,
    gate uuid, rank bigint)

-- name: take_kept
-- Keys of scope any and window that nobody has, in the caller's transaction.
WITH given AS MATERIALIZED ({given})
INSERT INTO {schema}.kept_keys (key, starts, ends, job)
SELECT DISTINCT ON (given.unique_key) given.unique_key,
    coalesce((SELECT max(last.ends) FROM {schema}.kept_keys AS last WHERE last.key = given.unique_key), 0),
    CASE given.unique_scope WHEN 'window' THEN given.created_at + coalesce(given.unique_window, 0) END, given.id
FROM given
WHERE given.unique_scope IN ('any', 'window')
    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = given.id)
    AND NOT EXISTS (
        SELECT 1 FROM {schema}.kept_keys AS taken
        WHERE taken.key = given.unique_key AND (taken.ends IS NULL OR taken.ends > given.created_at))
ORDER BY given.unique_key, given.number
ON CONFLICT (key, starts) DO NOTHING;

-- name: take_held
-- Keys of scope waiting and active that nobody has, in the caller's transaction.
WITH given AS MATERIALIZED ({given})
INSERT INTO {schema}.held_keys (key, job)
SELECT DISTINCT ON (given.unique_key) given.unique_key, given.id
FROM given
WHERE given.unique_scope IN ('waiting', 'active')
    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = given.id)
ORDER BY given.unique_key, given.number
ON CONFLICT (key) DO NOTHING;

-- name: insert
-- Jobs whose key is theirs, or that have none. One that has no share of its fair queue yet is blocked until it is placed.
WITH given AS MATERIALIZED ({given_jobs}),
stored AS (
    INSERT INTO {schema}.jobs (
        created_at, run_at, lease, timeout, max_attempts, expires_at, priority, min_version, id, chain_id, task, queue,
        payload, backoff, retention, dead_retention, run_when, key, tenant, routing_key, tags, meta, unique_key,
        unique_scope, after, limits)
    SELECT created_at, nullif(run_at, created_at), lease, timeout, max_attempts, created_at + expires, priority, min_version, id, chain_id,
        task, queue, payload, backoff, retention, dead_retention, run_when, key, tenant, routing_key, tags, meta,
        unique_key, unique_scope, {given_after}, limits
    FROM given
    WHERE {room} AND (unique_key IS NULL OR unique_scope IS NULL
        OR CASE WHEN unique_scope IN ('any', 'window')
            THEN EXISTS (
                SELECT 1 FROM {schema}.kept_keys AS taken WHERE taken.key = given.unique_key AND taken.job = given.id)
            ELSE EXISTS (
                SELECT 1 FROM {schema}.held_keys AS taken WHERE taken.key = given.unique_key AND taken.job = given.id)
            END)
    ORDER BY number
    ON CONFLICT (id) DO NOTHING
    RETURNING id, created_at, run_at, expires_at
),
fair AS MATERIALIZED (SELECT name FROM {schema}.queues WHERE queues.fair),
placed AS MATERIALIZED (
    SELECT given.number, stored.id, coalesce(given.rank, stored.run_at, stored.created_at) AS rank,
        CASE WHEN stored.run_at > stored.created_at OR given.rank IS NOT NULL
            THEN coalesce(stored.run_at, stored.created_at) END AS run_at,
        stored.expires_at, given.priority, given.min_version, {given_waits} AS waits, given.unique_scope, given.unique_key,
        CASE WHEN {given_waits} > 0 OR fair.name IS NOT NULL THEN 'blocked'
            WHEN stored.run_at > stored.created_at THEN 'scheduled' ELSE 'ready' END AS state,
        given.queue, given.task, coalesce('=' || given.routing_key, '') AS route, given.gate, {given_after} AS after,
        coalesce(given.run_when = 'finished', false) AS finished, fair.name IS NOT NULL AS unranked
    FROM stored JOIN given ON given.id = stored.id
        LEFT JOIN fair ON fair.name = given.queue AND given.rank IS NULL
),
{also}
left_open AS (
    INSERT INTO {schema}.unresolved (child, unranked)
    SELECT placed.id, placed.unranked FROM placed WHERE placed.unranked OR placed.after IS NOT NULL
    ORDER BY placed.number
)
INSERT INTO {schema}.waiting (
    rank, run_at, expires_at, urgency, min_version, id, waits, key_waits, state, queue, task, route, held_key, gate, parked)
SELECT rank, run_at, expires_at, -1 - priority, min_version, id, nullif(waits, 0), coalesce(unique_scope = 'waiting', false),
    state, queue, task, route, CASE WHEN unique_scope IN ('waiting', 'active') THEN unique_key END, gate,
    state = 'ready' AND gate IS NOT NULL
FROM placed;

-- name: given_led
-- The same jobs, where some of the list may belong to keys of others: those wait for the owners who stand for their parents.
WITH raw AS MATERIALIZED ({given}),
owner AS MATERIALIZED (
    SELECT raw.id, taken.job FROM raw CROSS JOIN LATERAL (
        SELECT kept.job FROM {schema}.kept_keys AS kept WHERE kept.key = raw.unique_key
        ORDER BY kept.starts DESC LIMIT 1) AS taken
    WHERE raw.unique_scope IN ('any', 'window') AND taken.job <> raw.id
    UNION ALL
    SELECT raw.id, taken.job FROM raw CROSS JOIN LATERAL (
        SELECT held.job FROM {schema}.held_keys AS held WHERE held.key = raw.unique_key OFFSET 0) AS taken
    WHERE raw.unique_scope IN ('waiting', 'active') AND taken.job <> raw.id
)
SELECT raw.*, led.after AS led_after, led.waits AS led_waits
FROM raw LEFT JOIN LATERAL (
    SELECT '["' || string_agg(parents.id::text, '","' ORDER BY parents.place) || '"]' AS after, count(*)::integer AS waits
    FROM (
        SELECT coalesce(owner.job, parent.id::uuid) AS id, min(parent.place) AS place, bool_or(owner.job IS NOT NULL) AS led
        FROM json_array_elements_text(raw.after::json) WITH ORDINALITY AS parent (id, place)
            LEFT JOIN owner ON owner.id = parent.id::uuid
        GROUP BY 1
    ) AS parents
    HAVING bool_or(parents.led)
) AS led ON true

-- name: led_after
-- Whom a job of such a list waits for.
coalesce(given.led_after, given.after)

-- name: led_waits
-- How many that are.
coalesce(given.led_waits, given.waits)

-- name: also_edges
-- The edges from the jobs that they wait for.
new_edges AS (
    INSERT INTO {schema}.edges (parent, child, finished)
    SELECT DISTINCT parent.id::uuid, placed.id, placed.finished
    FROM placed CROSS JOIN LATERAL json_array_elements_text(placed.after::json) AS parent (id)
    ON CONFLICT (parent, child) DO NOTHING
),

-- name: also_news
-- Word of the lanes in which jobs are parked.
news AS (
    INSERT INTO {schema}.limit_notices (gate, queue, task, route)
    SELECT DISTINCT placed.gate, placed.queue, placed.task, placed.route
    FROM placed WHERE placed.gate IS NOT NULL AND placed.state = 'ready'
),

-- name: room
-- Whether all the queues take any number of jobs as they come; if not, nothing is stored.
NOT EXISTS (
    SELECT 1 FROM {schema}.queues
    WHERE (queues.max_depth IS NOT NULL OR queues.fair) AND queues.name IN (SELECT every.queue FROM given AS every))

-- name: readback
-- The job that stands for each: itself, or the one whose key it shares; nobody when that key became free just now. A job
-- of this transaction is still waiting; a look into `jobs` would lock all its pieces until the caller's end.
WITH given AS MATERIALIZED ({given})
SELECT given.number, coalesce(
    (SELECT waiting.id FROM {schema}.waiting WHERE waiting.id = given.id),
    CASE WHEN given.unique_scope IN ('any', 'window')
    THEN (
        SELECT taken.job FROM {schema}.kept_keys AS taken
        WHERE taken.key = given.unique_key ORDER BY taken.starts DESC LIMIT 1)
    ELSE (SELECT taken.job FROM {schema}.held_keys AS taken WHERE taken.key = given.unique_key)
    END)::text
FROM given ORDER BY given.number;

-- name: owners
-- The same before anything is inserted: a key whose window is over belongs to nobody.
WITH given AS MATERIALIZED ({given})
SELECT given.number, coalesce(
    (SELECT waiting.id FROM {schema}.waiting WHERE waiting.id = given.id),
    CASE WHEN given.unique_scope IN ('any', 'window')
    THEN (
        SELECT taken.job FROM {schema}.kept_keys AS taken
        WHERE taken.key = given.unique_key AND (taken.ends IS NULL OR taken.ends > given.created_at)
        ORDER BY taken.starts DESC LIMIT 1)
    ELSE (SELECT taken.job FROM {schema}.held_keys AS taken WHERE taken.key = given.unique_key)
    END)::text
FROM given ORDER BY given.number;
