-- name: named
-- Entries of a kind under some names.
WITH input (name) AS (VALUES {values})
SELECT kind, perdure_kv.name, text, version, due_at, job FROM input
CROSS JOIN perdure_kv ON kind = ? AND perdure_kv.name = input.name;

-- name: of_kind
-- Entries of a kind, by name.
SELECT kind, name, text, version, due_at, job FROM perdure_kv WHERE kind = ? ORDER BY name LIMIT ?;

-- name: of_job
-- Those of a job, by name.
SELECT kind, name, text, version, due_at, job FROM perdure_kv WHERE job = :job AND kind = :kind ORDER BY name LIMIT :limit;

-- name: due
-- Those whose time has come, the earliest first, of any job or of one.
SELECT kind, name, text, version, due_at, job FROM perdure_kv INDEXED BY perdure_kv_due
WHERE kind = :kind AND due_at <= :due_by AND (:job IS NULL OR job = :job) ORDER BY due_at, name LIMIT :limit;

-- name: versions
-- The versions of entries under some names.
WITH input (kind, name) AS (VALUES {values})
SELECT perdure_kv.kind, perdure_kv.name, version FROM input
CROSS JOIN perdure_kv ON perdure_kv.kind = input.kind AND perdure_kv.name = input.name;

-- name: put
-- Entries in place of the stored ones.
INSERT OR REPLACE INTO perdure_kv (kind, name, text, version, due_at, job) VALUES {values};

-- name: remove
-- Entries under some names.
WITH input (kind, name) AS (VALUES {values})
DELETE FROM perdure_kv WHERE (kind, name) IN (SELECT kind, name FROM input);

-- name: page
-- All entries after a position.
SELECT kind, name, text, version, due_at, job FROM perdure_kv {condition} ORDER BY kind, name LIMIT ?;
