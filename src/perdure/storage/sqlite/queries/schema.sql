-- name: our_tables
-- Tables that carry our prefix; those of an outbox are a schema of their own.
SELECT name FROM sqlite_master
WHERE type IN ('table', 'view') AND name GLOB 'perdure_*' AND name NOT GLOB 'perdure_outbox*';

-- name: outbox_tables
-- Tables of an outbox.
SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name GLOB 'perdure_outbox*';

-- name: meta_table
-- Where the number of the schema is noted.
CREATE TABLE IF NOT EXISTS {meta} (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- name: version
-- The number of the schema.
SELECT value FROM {meta} WHERE name = 'schema';

-- name: note_version
-- Note the number of the schema.
INSERT OR REPLACE INTO {meta} (name, value) VALUES ('schema', ?);
