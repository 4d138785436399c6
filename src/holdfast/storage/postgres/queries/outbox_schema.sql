-- name: turn
-- Migrators take turns, until their transaction ends; with those of a store too, for both make the schema.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast ' || '{bare}', 0));

-- name: create_schema
-- The schema, if it is not there: then no right to create one is needed.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{bare}') THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

-- name: create_meta
-- What is known about the outbox itself.
CREATE TABLE IF NOT EXISTS {schema}.holdfast_outbox_meta (
    name text COLLATE "C" NOT NULL PRIMARY KEY, value text COLLATE "C" NOT NULL);

-- name: note_version
-- The number of the last migration.
INSERT INTO {schema}.holdfast_outbox_meta (name, value) VALUES ('version', (%(version)s::integer)::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: meta_is_there
-- Whether an outbox was ever made here.
SELECT to_regclass('{schema}.holdfast_outbox_meta') IS NOT NULL;

-- name: version
-- The number of the last migration.
SELECT value FROM {schema}.holdfast_outbox_meta WHERE name = 'version';
