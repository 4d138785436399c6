-- name: our_tables
-- Tables that carry our prefix.
SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND substr(name, 1, 9) = 'holdfast_';

-- name: meta_table
-- Where the number of the schema is noted.
CREATE TABLE IF NOT EXISTS holdfast_meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- name: version
-- The number of the schema.
SELECT value FROM holdfast_meta WHERE name = 'schema';

-- name: note_version
-- Note the number of the schema.
INSERT OR REPLACE INTO holdfast_meta (name, value) VALUES ('schema', ?);
