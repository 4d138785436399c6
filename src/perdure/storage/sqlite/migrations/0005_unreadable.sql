-- Rows that could not be read, as they were found: a JSON object each. `place` is the table, without our prefix; `id` is that of
-- the job, or another name of the row; `fields` is a JSON array.
CREATE TABLE perdure_unreadable (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    place TEXT NOT NULL,
    fields TEXT NOT NULL,
    raw TEXT NOT NULL
) STRICT;
CREATE INDEX perdure_unreadable_id ON perdure_unreadable (id);
