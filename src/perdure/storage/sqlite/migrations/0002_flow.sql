-- Jobs that wait for jobs, limits, fair shares, and the shelf.

ALTER TABLE perdure_jobs ADD COLUMN followed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_jobs ADD COLUMN next_id TEXT;
-- 1: once it has ended, its edges are to be looked at
ALTER TABLE perdure_jobs ADD COLUMN releases INTEGER NOT NULL DEFAULT 0;

-- ended jobs whose edges are to be looked at: the end of a job writes nothing more than it does without followers
CREATE INDEX perdure_jobs_releasing ON perdure_jobs (finished_at, id) WHERE releases = 1 AND finished_at IS NOT NULL;
-- what waits for room under its limits, by gate; the queue comes first, because its jobs are counted
CREATE INDEX perdure_jobs_parked ON perdure_jobs (queue, limits, task, routing_key, priority DESC, rank, id)
    WHERE state = 'ready' AND parked = 1 AND suspect = 0;
-- what is held under limits: counted, never kept in a counter
CREATE INDEX perdure_jobs_limited ON perdure_jobs (limits, leased_until) WHERE stamp IS NOT NULL AND limits IS NOT NULL;

-- who waits for whom; a closed edge stays until its child is gone, so that the parent's result is there
CREATE TABLE perdure_edges (
    parent TEXT NOT NULL,
    child TEXT NOT NULL,
    run_when TEXT NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_edges_open ON perdure_edges (parent, run_when, child) WHERE open = 1;
CREATE INDEX perdure_edges_child ON perdure_edges (child);

-- what else is to be resolved: jobs from a caller's own transaction that are to be placed (placing = 1), and jobs whose
-- edges are to be looked at although they may not be on record
CREATE TABLE perdure_unresolved (
    number INTEGER NOT NULL PRIMARY KEY,
    job TEXT NOT NULL,
    placing INTEGER NOT NULL
) STRICT;

-- parked jobs of one queue, task, routing key and limits. priority, rank and head: where the best of them stands, or better.
-- closed_by: the limits that are used up, '' while it is open
CREATE TABLE perdure_gates (
    number INTEGER NOT NULL PRIMARY KEY,
    limits TEXT NOT NULL,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    routing_key TEXT,
    priority INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    head TEXT NOT NULL,
    closed_by TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX perdure_gates_place ON perdure_gates (limits, queue, task, coalesce('=' || routing_key, ''));
CREATE INDEX perdure_gates_open ON perdure_gates (queue, task, routing_key, priority DESC, rank, head)
    WHERE closed_by = '';
CREATE INDEX perdure_gates_closed ON perdure_gates (closed_by, priority DESC, rank, head) WHERE closed_by <> '';

-- limits that gates are closed by. opens_at: when a rate lets the next one start; NULL: when one that runs has ended
CREATE TABLE perdure_closers (
    limits TEXT NOT NULL PRIMARY KEY,
    closed_at INTEGER NOT NULL,
    opens_at INTEGER
) STRICT;
CREATE INDEX perdure_closers_full ON perdure_closers (limits) WHERE opens_at IS NULL;
CREATE INDEX perdure_closers_rate ON perdure_closers (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX perdure_closers_since ON perdure_closers (closed_at) WHERE opens_at IS NOT NULL;

-- starts of keys under a rate: JSON, [instant, how many] each; nothing counts after `ends`
CREATE TABLE perdure_starts (
    key TEXT NOT NULL PRIMARY KEY,
    starts TEXT NOT NULL,
    ends INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- ranks in fair queues: of a tenant's last job ('=' and its name), or the floor ('')
CREATE TABLE perdure_accounts (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    payer TEXT NOT NULL,
    rank INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, payer)
) STRICT, WITHOUT ROWID;

-- named texts: schedules, subscriptions, results of steps …
CREATE TABLE perdure_shelf (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER,
    job TEXT,
    PRIMARY KEY (kind, name)
) STRICT;
CREATE INDEX perdure_shelf_due ON perdure_shelf (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX perdure_shelf_job ON perdure_shelf (job) WHERE job IS NOT NULL;
