-- Jobs that wait for jobs, limits, fair shares, and the shelf.

ALTER TABLE holdfast_jobs ADD COLUMN followed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_jobs ADD COLUMN next_id TEXT;
-- 1: once it has ended, its edges are to be looked at
ALTER TABLE holdfast_jobs ADD COLUMN releases INTEGER NOT NULL DEFAULT 0;

-- ended jobs whose edges are to be looked at: the end of a job writes nothing more than it does without followers
CREATE INDEX holdfast_jobs_releasing ON holdfast_jobs (finished_at, id) WHERE releases = 1 AND finished_at IS NOT NULL;
-- what waits for room under its limits, by gate; the queue comes first, because its jobs are counted
CREATE INDEX holdfast_jobs_parked ON holdfast_jobs (queue, limits, task, routing_key, priority DESC, rank, id)
    WHERE state = 'ready' AND parked = 1 AND suspect = 0;
-- what is held under limits: counted, never kept in a counter
CREATE INDEX holdfast_jobs_limited ON holdfast_jobs (limits, leased_until) WHERE stamp IS NOT NULL AND limits IS NOT NULL;

-- who waits for whom; a closed edge stays until its child is gone, so that the parent's result is there
CREATE TABLE holdfast_edges (
    parent TEXT NOT NULL,
    child TEXT NOT NULL,
    run_when TEXT NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_edges_open ON holdfast_edges (parent, run_when, child) WHERE open = 1;
CREATE INDEX holdfast_edges_child ON holdfast_edges (child);

-- what else is to be settled: jobs from a caller's own transaction that are to be placed (placing = 1), and jobs whose
-- edges are to be looked at although they may not be on record
CREATE TABLE holdfast_unsettled (
    number INTEGER NOT NULL PRIMARY KEY,
    job TEXT NOT NULL,
    placing INTEGER NOT NULL
) STRICT;

-- parked jobs of one queue, task, routing key and limits. priority, rank and head: where the best of them stands, or better.
-- closed_by: the limits that are used up, '' while it is open
CREATE TABLE holdfast_gates (
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
CREATE UNIQUE INDEX holdfast_gates_place ON holdfast_gates (limits, queue, task, coalesce('=' || routing_key, ''));
CREATE INDEX holdfast_gates_open ON holdfast_gates (queue, task, routing_key, priority DESC, rank, head)
    WHERE closed_by = '';
CREATE INDEX holdfast_gates_closed ON holdfast_gates (closed_by, priority DESC, rank, head) WHERE closed_by <> '';

-- limits that gates are closed by. opens_at: when a rate lets the next one start; NULL: when one that runs has ended
CREATE TABLE holdfast_closers (
    limits TEXT NOT NULL PRIMARY KEY,
    closed_at INTEGER NOT NULL,
    opens_at INTEGER
) STRICT;
CREATE INDEX holdfast_closers_full ON holdfast_closers (limits) WHERE opens_at IS NULL;
CREATE INDEX holdfast_closers_rate ON holdfast_closers (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX holdfast_closers_since ON holdfast_closers (closed_at) WHERE opens_at IS NOT NULL;

-- starts of keys under a rate: JSON, [instant, how many] each; nothing counts after `ends`
CREATE TABLE holdfast_starts (
    key TEXT NOT NULL PRIMARY KEY,
    starts TEXT NOT NULL,
    ends INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- ranks in fair queues: of a tenant's last job ('=' and its name), or the floor ('')
CREATE TABLE holdfast_accounts (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    payer TEXT NOT NULL,
    rank INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, payer)
) STRICT, WITHOUT ROWID;

-- named texts: schedules, subscriptions, results of steps …
CREATE TABLE holdfast_shelf (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER,
    job TEXT,
    PRIMARY KEY (kind, name)
) STRICT;
CREATE INDEX holdfast_shelf_due ON holdfast_shelf (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX holdfast_shelf_job ON holdfast_shelf (job) WHERE job IS NOT NULL;
