-- name: turn
-- Migrators take turns, until their transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('perdure ' || %(key)s::text, 0));

-- name: create_schema
-- The schema that holds everything of a store; one that is there already needs no right to create one.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{bare}') THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

-- name: note_version
-- What is known about the schema itself: the number of the last migration.
CREATE TABLE IF NOT EXISTS {schema}.{meta} (name text COLLATE "C" NOT NULL PRIMARY KEY, value text COLLATE "C" NOT NULL);
INSERT INTO {schema}.{meta} (name, value) VALUES ('version', '{number}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: version
-- The number of the last migration.
SELECT value FROM {schema}.{meta} WHERE name = 'version';

-- name: our_tables
-- Tables of the schema that have names of ours.
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %(schema)s::text AND relkind IN ('r', 'p') AND relname = ANY(%(tables)s::text[]);
