-- name: named
-- Texts of a kind under some names.
WITH given (name) AS (VALUES {values})
SELECT kind, perdure_shelf.name, text, version, due_at, job FROM given
CROSS JOIN perdure_shelf ON kind = ? AND perdure_shelf.name = given.name;

-- name: of_kind
-- Texts of a kind, by name.
SELECT kind, name, text, version, due_at, job FROM perdure_shelf WHERE kind = ? ORDER BY name LIMIT ?;

-- name: of_job
-- Those of a job, by name.
SELECT kind, name, text, version, due_at, job FROM perdure_shelf WHERE job = :job AND kind = :kind ORDER BY name LIMIT :limit;

-- name: due
-- Those whose time has come, the earliest first, of any job or of one.
SELECT kind, name, text, version, due_at, job FROM perdure_shelf INDEXED BY perdure_shelf_due
WHERE kind = :kind AND due_at <= :due_by AND (:job IS NULL OR job = :job) ORDER BY due_at, name LIMIT :limit;

-- name: versions
-- How new the texts under some names are.
WITH given (kind, name) AS (VALUES {values})
SELECT perdure_shelf.kind, perdure_shelf.name, version FROM given
CROSS JOIN perdure_shelf ON perdure_shelf.kind = given.kind AND perdure_shelf.name = given.name;

-- name: put
-- Texts as they are, in place of what is there.
INSERT OR REPLACE INTO perdure_shelf (kind, name, text, version, due_at, job) VALUES {values};

-- name: take_off
-- Texts that are to vanish.
WITH given (kind, name) AS (VALUES {values})
DELETE FROM perdure_shelf WHERE (kind, name) IN (SELECT kind, name FROM given);

-- name: page
-- The whole shelf behind a place.
SELECT kind, name, text, version, due_at, job FROM perdure_shelf {behind} ORDER BY kind, name LIMIT ?;
