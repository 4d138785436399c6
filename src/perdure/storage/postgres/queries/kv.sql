-- name: named
-- Texts of a kind by their names.
SELECT {columns} FROM {schema}.kv
WHERE kind = %(kind)s::text AND name = ANY(%(names)s::text[]) AND (%(job)s::uuid IS NULL OR job = %(job)s::uuid)
ORDER BY name;

-- name: first
-- The first texts of a kind.
SELECT {columns} FROM {schema}.kv WHERE kind = %(kind)s::text ORDER BY name LIMIT %(limit)s::integer;

-- name: of_job
-- The first texts of a kind that belong to a job.
SELECT {columns} FROM {schema}.kv WHERE kind = %(kind)s::text AND job = %(job)s::uuid
ORDER BY name LIMIT %(limit)s::integer;

-- name: due
-- Texts of a kind whose time has come, the earliest first.
SELECT {columns} FROM {schema}.kv
WHERE kind = %(kind)s::text AND due_at <= {now} AND (%(job)s::uuid IS NULL OR job = %(job)s::uuid)
ORDER BY due_at, name LIMIT %(limit)s::integer;

-- name: columns
-- The columns of a kv entry, in its order.
kind, name, text, version, due_at, job::text

-- name: lock
-- The versions of texts, locked in the order in which they are given.
SELECT found.kind, found.name, found.version
FROM unnest(%(kinds)s::text[], %(names)s::text[]) AS given (kind, name)
    CROSS JOIN LATERAL (
        SELECT kind, name, version FROM {schema}.kv
        WHERE kv.kind = given.kind AND kv.name = given.name FOR UPDATE) AS found;

-- name: add
-- Texts that were not there.
INSERT INTO {schema}.kv (kind, name, text, version, due_at, job)
SELECT kind, name, text, version, due_at, job
FROM unnest({given}) AS given (kind, name, text, version, due_at, job) ORDER BY kind, name
ON CONFLICT (kind, name) DO NOTHING;

-- name: put
-- Texts in place of what is there.
INSERT INTO {schema}.kv (kind, name, text, version, due_at, job)
SELECT kind, name, text, version, due_at, job
FROM unnest({given}) AS given (kind, name, text, version, due_at, job) ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text, version = excluded.version, due_at = excluded.due_at,
    job = excluded.job;

-- name: given
-- Texts, column by column.
%(kinds)s::text[], %(names)s::text[], %(texts)s::text[], %(versions)s::bigint[], %(dues)s::bigint[], %(jobs)s::uuid[]

-- name: take_off
-- Texts that are no longer kept.
DELETE FROM {schema}.kv WHERE ctid = ANY(ARRAY(
    SELECT found.place FROM unnest(%(kinds)s::text[], %(names)s::text[]) AS given (kind, name)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM {schema}.kv
            WHERE kv.kind = given.kind AND kv.name = given.name OFFSET 0) AS found));

-- name: export
-- All entries behind a position.
SELECT {columns} FROM {schema}.kv
WHERE %(kind)s::text IS NULL OR (kind, name) > (%(kind)s::text, %(name)s::text)
ORDER BY kind, name LIMIT %(limit)s::integer;
