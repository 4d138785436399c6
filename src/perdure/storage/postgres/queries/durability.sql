-- name: settings
-- What decides whether a commit survives a crash.
SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_standby_names'), (
        SELECT array_agg(relname::text) FROM pg_catalog.pg_class
        WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'r' AND relpersistence = 'u');
