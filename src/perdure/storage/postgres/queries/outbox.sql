-- name: insert
-- Jobs in the caller's transaction, one row each, in the order of the list, at one instant.
WITH clock AS MATERIALIZED (SELECT {clock} AS instant)
INSERT INTO {schema}.perdure_outbox (enqueued_at, min_version, id, queue, job)
SELECT coalesce(given.enqueued_at, clock.instant), given.min_version, given.id, given.queue, given.job
FROM clock CROSS JOIN json_to_recordset(?::text::json) AS given (
    number integer, enqueued_at bigint, min_version integer, id text, queue text, job text)
ORDER BY given.number;

-- name: which
-- The database that a connection leads to, its server, and whether it may write into the outbox; see home.sql.
SELECT pg_catalog.current_database()::text,
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
    coalesce(pg_catalog.host(pg_catalog.inet_server_addr()) || ':' || pg_catalog.inet_server_port(), 'a local socket'),
    pg_catalog.current_setting('transaction_read_only'),
    pg_catalog.current_setting('synchronous_commit'), (
        SELECT pg_catalog.has_schema_privilege(relnamespace, 'USAGE') AND pg_catalog.has_table_privilege(oid, 'INSERT')
        FROM pg_catalog.pg_class
        WHERE relnamespace = to_regnamespace('{schema}') AND relname = 'perdure_outbox' AND relkind = 'r');

-- name: waits
-- Whether anything waits that could be moved.
SELECT EXISTS (SELECT 1 FROM {schema}.perdure_outbox WHERE {movable});

-- name: movable
-- Rows that this version may move, of all queues but some.
set_aside_at IS NULL AND min_version <= {row_version} AND NOT queue = ANY(%(but)s::text[])

-- name: turn
-- Whether no other relay is at it, until the transaction ends.
SELECT pg_catalog.pg_try_advisory_xact_lock(hashtextextended('perdure outbox ' || '{schema}', 0));

-- name: batch
-- The first rows that wait, up to a number of rows and of bytes.
SELECT number, enqueued_at, job FROM (
    SELECT number, enqueued_at, job, sum(length(job)) OVER (ORDER BY number) - length(job) AS before FROM (
        SELECT number, enqueued_at, job FROM {schema}.perdure_outbox
        WHERE {movable} ORDER BY number LIMIT %(limit)s::bigint) AS first) AS counted
WHERE before < %(bytes)s::bigint ORDER BY number;

-- name: moved
-- They are on record at their store.
DELETE FROM {schema}.perdure_outbox WHERE number = ANY(%(numbers)s::bigint[]);

-- name: set_aside
-- They cannot be moved.
UPDATE {schema}.perdure_outbox SET set_aside_at = {now}, error = given.error
FROM unnest(%(numbers)s::bigint[], %(errors)s::text[]) AS given (number, error)
WHERE perdure_outbox.number = given.number;

-- name: bring_back
-- Those that were set aside wait again.
UPDATE {schema}.perdure_outbox SET set_aside_at = NULL, error = NULL WHERE set_aside_at IS NOT NULL;

-- name: standing
-- How many wait, for how long the oldest has, and how many were set aside.
SELECT count(*) - count(set_aside_at), {now} - min(greatest(enqueued_at, 0)) FILTER (WHERE set_aside_at IS NULL),
    count(set_aside_at)
FROM {schema}.perdure_outbox;

-- name: aside
-- Rows that were set aside.
SELECT number, id, error, set_aside_at FROM {schema}.perdure_outbox
WHERE set_aside_at IS NOT NULL ORDER BY number LIMIT %(limit)s::bigint;
