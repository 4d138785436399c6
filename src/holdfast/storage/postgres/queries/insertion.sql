-- name: given
-- The jobs in a JSON array, with the instant at which they are put on record: one for all of them.
WITH clock AS MATERIALIZED (SELECT {clock} AS instant)
SELECT job.*, coalesce(job.now, clock.instant) AS created_at,
    coalesce(job.at, coalesce(job.now, clock.instant) + job.delay) AS run_at
FROM clock CROSS JOIN json_to_recordset({parameter}::json) AS job (
    number integer, id uuid, task text, queue text, priority integer, at bigint, delay bigint, now bigint, payload text,
    max_attempts bigint, timeout bigint, lease bigint, backoff text, retention text, dead_retention text, expires bigint,
    key text, tenant text, routing_key text, tags text, meta text, unique_key text, unique_scope text,
    unique_window bigint, chain_id uuid, after text, run_when text, waits integer, limits text, min_version integer)

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
-- Jobs whose key is theirs, or that have none.
WITH given AS MATERIALIZED ({given}),
stored AS (
    INSERT INTO {schema}.jobs (
        created_at, run_at, lease, timeout, max_attempts, expires_at, priority, min_version, id, chain_id, task, queue,
        payload, backoff, retention, dead_retention, run_when, key, tenant, routing_key, tags, meta, unique_key,
        unique_scope, after, limits)
    SELECT created_at, nullif(run_at, created_at), lease, timeout, max_attempts, created_at + expires, priority, min_version, id, chain_id,
        task, queue, payload, backoff, retention, dead_retention, run_when, key, tenant, routing_key, tags, meta,
        unique_key, unique_scope, after, limits
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
)
INSERT INTO {schema}.waiting (
    rank, run_at, expires_at, urgency, min_version, id, waits, key_waits, state, queue, task, route, held_key)
SELECT coalesce(stored.run_at, stored.created_at), CASE WHEN stored.run_at > stored.created_at THEN stored.run_at END,
    stored.expires_at, -1 - given.priority, given.min_version, stored.id, nullif(given.waits, 0),
    coalesce(given.unique_scope = 'waiting', false),
    CASE WHEN given.waits > 0 THEN 'blocked' WHEN stored.run_at > stored.created_at THEN 'scheduled' ELSE 'ready' END,
    given.queue, given.task, coalesce('=' || given.routing_key, ''),
    CASE WHEN given.unique_scope IN ('waiting', 'active') THEN given.unique_key END
FROM stored JOIN given ON given.id = stored.id;

-- name: room
-- Whether all the queues take any number of jobs; if not, nothing is stored.
NOT EXISTS (
    SELECT 1 FROM {schema}.queues WHERE max_depth IS NOT NULL AND queues.name IN (SELECT every.queue FROM given AS every))

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
