-- name: settings
-- What decides whether a commit survives a crash.
SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_standby_names'), (
        SELECT array_agg(relname::text) FROM pg_catalog.pg_class
        WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'r' AND relpersistence = 'u');

-- name: server
-- Version, role, connections and settings.
SELECT current_setting('server_version'), current_user::text,
    (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
    pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'),
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
    current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on',
    (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'statement_timeout');

-- name: transactions
-- Who keeps vacuum from removing dead rows, the longest first: sessions, prepared transactions, replication slots.
SELECT kind, name, seconds FROM (
    SELECT 'session' AS kind, pid::text AS name, extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds
    FROM pg_catalog.pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type <> 'walsender'
        AND pid <> pg_catalog.pg_backend_pid()
    UNION ALL
    SELECT 'prepared', gid, extract(epoch FROM clock_timestamp() - prepared)::bigint FROM pg_catalog.pg_prepared_xacts
) AS holder
WHERE seconds >= %(long)s::bigint ORDER BY seconds DESC LIMIT 5;

-- name: slots
-- Replication slots that nobody reads and that hold back vacuum or the removal of WAL.
SELECT slot_name::text, coalesce(pg_catalog.age(xmin), pg_catalog.age(catalog_xmin), 0),
    pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots WHERE NOT active;

-- name: indexes
-- The indexes of our tables, and whether they can be used.
SELECT index.relname::text, pg_index.indisvalid AND pg_index.indisready
FROM pg_catalog.pg_index JOIN pg_catalog.pg_class AS index ON index.oid = indexrelid
    JOIN pg_catalog.pg_namespace ON pg_namespace.oid = index.relnamespace
WHERE nspname = %(schema)s::text;

-- name: keys
-- The tables of ours that have a primary key.
SELECT pg_class.relname::text FROM pg_catalog.pg_index JOIN pg_catalog.pg_class ON pg_class.oid = indrelid
    JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %(schema)s::text AND indisprimary;

-- name: tables
-- Our tables: rows that live and that are dead, and whether they are left out of autovacuum.
SELECT pg_class.relname::text, coalesce(n_live_tup, 0), coalesce(n_dead_tup, 0),
    coalesce('autovacuum_enabled=false' = ANY(reloptions), false), pg_catalog.pg_total_relation_size(pg_class.oid)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    LEFT JOIN pg_catalog.pg_stat_user_tables AS seen ON seen.relid = pg_class.oid
WHERE nspname = %(schema)s::text AND relkind = 'r';
