-- name: which
-- The database that a connection leads to, its server, and whether jobs can be put on record there. Of two servers no two
-- have begun at the same microsecond; everybody may ask for that, and a copy of a database does not copy it.
SELECT pg_catalog.current_database()::text,
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
    coalesce(pg_catalog.host(pg_catalog.inet_server_addr()) || ':' || pg_catalog.inet_server_port(), 'a local socket'),
    pg_catalog.current_setting('transaction_read_only'),
    pg_catalog.current_setting('synchronous_commit'), (
        SELECT bool_and(
            pg_catalog.has_schema_privilege(relnamespace, 'USAGE') AND pg_catalog.has_table_privilege(oid, 'SELECT')
            AND (relname = 'queues' OR pg_catalog.has_table_privilege(oid, 'INSERT')))
        FROM pg_catalog.pg_class
        WHERE relnamespace = to_regnamespace('{schema}')
            AND relname IN (
                'jobs', 'waiting', 'held_keys', 'kept_keys', 'edges', 'unresolved', 'limit_notices', 'queues')
            AND relkind IN ('r', 'p'));
