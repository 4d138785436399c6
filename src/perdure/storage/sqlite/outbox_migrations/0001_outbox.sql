-- Jobs of callers' transactions that wait to be moved to their store. A number is never given twice: a relay deletes by it.
CREATE TABLE perdure_outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    enqueued_at INTEGER NOT NULL,
    min_version INTEGER NOT NULL, -- the oldest version of Perdure that may move it
    set_aside_at INTEGER, -- it cannot be moved: since when, and why
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    job TEXT NOT NULL, -- the whole job as JSON
    error TEXT
) STRICT;
