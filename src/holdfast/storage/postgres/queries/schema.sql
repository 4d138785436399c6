-- name: turn
-- Migrators take turns, until their transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast ' || %(key)s::text, 0));

-- name: schema_exists
-- Whether the schema is there; then no right to create one is needed.
SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s::text;

-- name: create_schema
-- The schema that holds everything of a store.
CREATE SCHEMA {schema};

-- name: create_meta
-- What is known about the schema itself.
CREATE TABLE IF NOT EXISTS {schema}.meta (name text COLLATE "C" NOT NULL PRIMARY KEY, value text COLLATE "C" NOT NULL);

-- name: note_version
-- The number of the last migration.
INSERT INTO {schema}.meta (name, value) VALUES ('version', (%(version)s::integer)::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: version
-- The number of the last migration.
SELECT value FROM {schema}.meta WHERE name = 'version';

-- name: our_tables
-- Tables of the schema that have names of ours.
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %(schema)s::text AND relkind IN ('r', 'p') AND relname = ANY(%(tables)s::text[]);

-- name: first_partitions
-- The pieces of the history for today and tomorrow.
SELECT {schema}.keep_partitions({now}, 1);
