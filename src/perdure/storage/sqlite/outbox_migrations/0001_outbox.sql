-- Jobs from callers' transactions that wait for the relay. A number is never used twice, because the relay deletes by it.
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
