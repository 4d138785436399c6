-- The tables of a SQLite store. Partial indexes hold only the rows that a query is about, so ended jobs cost nothing. Instants
-- and durations are microseconds.

-- A job is two rows with one number. This one is written by every change, so it is short. in_lane: 1 while the job can be claimed
-- from a lane. parked: 1 while it waits for its limits. index_state: 'suspect', 'scheduled', 'blocked' or 'dead', NULL for all
-- others. A running job has none of the three, so its end writes to no index of waiting jobs. edges_pending: 1 if its edges are to
-- be resolved once it has ended. in_paused_queue: 1 after a claim over all queues has met it in a paused queue; such a claim does
-- not read it again until the queue is resumed.
CREATE TABLE perdure_jobs (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    in_lane INTEGER,
    index_state TEXT,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    routing_key TEXT,
    priority INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    expires_at INTEGER,
    prune_at INTEGER,
    keep_last INTEGER,
    stamp INTEGER,
    accepted_stamp INTEGER,
    leased_by TEXT,
    leased_until INTEGER,
    suspect INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    hidden INTEGER NOT NULL,
    result TEXT,
    reason TEXT,
    unique_key TEXT,
    holds_key INTEGER NOT NULL,
    limits TEXT,
    followed INTEGER NOT NULL DEFAULT 0,
    edges_pending INTEGER NOT NULL DEFAULT 0,
    in_paused_queue INTEGER
) STRICT;
CREATE UNIQUE INDEX perdure_jobs_id ON perdure_jobs (id);
-- jobs that can be claimed, in lanes of queue, task and routing key
CREATE INDEX perdure_jobs_ready ON perdure_jobs (queue, task, routing_key, priority DESC, rank, id) WHERE in_lane = 1;
-- parked jobs by gate; the queue comes first, because its jobs are counted
CREATE INDEX perdure_jobs_parked ON perdure_jobs (queue, limits, task, routing_key, priority DESC, rank, id)
    WHERE parked = 1 AND suspect = 0;
-- jobs that wait neither in a lane nor at a gate
CREATE INDEX perdure_jobs_waiting ON perdure_jobs (queue) WHERE index_state IN ('suspect', 'scheduled', 'blocked');
CREATE INDEX perdure_jobs_suspect ON perdure_jobs (queue) WHERE index_state = 'suspect';
CREATE INDEX perdure_jobs_due ON perdure_jobs (run_at, id) WHERE index_state = 'scheduled';
CREATE INDEX perdure_jobs_dead ON perdure_jobs (created_at) WHERE index_state = 'dead';
CREATE INDEX perdure_jobs_expiry ON perdure_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND (in_lane = 1 OR parked = 1 OR index_state IN ('suspect', 'scheduled', 'blocked'));
-- held jobs; those under limits have an index of their own, by which they are counted
CREATE INDEX perdure_jobs_lease ON perdure_jobs (leased_until) WHERE leased_until IS NOT NULL AND limits IS NULL;
CREATE INDEX perdure_jobs_limited ON perdure_jobs (limits, leased_until) WHERE limits IS NOT NULL AND stamp IS NOT NULL;
CREATE INDEX perdure_jobs_prune ON perdure_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX perdure_jobs_counted ON perdure_jobs (task, finished_at) WHERE keep_last IS NOT NULL;
-- ended jobs whose edges are to be resolved: the end of a job writes nothing more than it does without followers
CREATE INDEX perdure_jobs_edges ON perdure_jobs (finished_at, id) WHERE edges_pending = 1 AND finished_at IS NOT NULL;
CREATE INDEX perdure_jobs_created ON perdure_jobs (created_at);
CREATE UNIQUE INDEX perdure_jobs_unique ON perdure_jobs (unique_key) WHERE holds_key = 1;
CREATE INDEX perdure_jobs_paused ON perdure_jobs (queue) WHERE in_paused_queue = 1;

-- what a job was enqueued with, and what changes seldom
CREATE TABLE perdure_bodies (
    number INTEGER NOT NULL PRIMARY KEY,
    payload TEXT NOT NULL,
    policy INTEGER NOT NULL,
    min_version INTEGER NOT NULL,
    run_when TEXT NOT NULL,
    waits INTEGER NOT NULL,
    key TEXT,
    tenant TEXT,
    tags TEXT,
    meta TEXT,
    unique_scope TEXT,
    chain_id TEXT,
    after TEXT,
    next_id TEXT,
    progress TEXT,
    errors TEXT
) STRICT;
CREATE INDEX perdure_bodies_key ON perdure_bodies (key) WHERE key IS NOT NULL;
CREATE INDEX perdure_bodies_chain ON perdure_bodies (chain_id) WHERE chain_id IS NOT NULL;

CREATE TRIGGER perdure_jobs_gone AFTER DELETE ON perdure_jobs BEGIN
    DELETE FROM perdure_bodies WHERE number = old.number;
END;

-- what jobs have in common: written once and never changed; the number is a hash of the values
CREATE TABLE perdure_policies (
    number INTEGER NOT NULL PRIMARY KEY,
    max_attempts INTEGER,
    timeout INTEGER,
    backoff TEXT NOT NULL,
    retention TEXT NOT NULL,
    dead_retention TEXT NOT NULL
) STRICT;

-- unique keys of scope any (ends is NULL) and window; after the end of a window the key gets a new row
CREATE TABLE perdure_keys (
    key TEXT NOT NULL,
    starts INTEGER NOT NULL,
    ends INTEGER,
    job TEXT NOT NULL,
    PRIMARY KEY (key, starts)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_keys_ends ON perdure_keys (ends) WHERE ends IS NOT NULL;

CREATE TABLE perdure_log (
    number INTEGER NOT NULL PRIMARY KEY,
    job TEXT NOT NULL,
    line TEXT NOT NULL
) STRICT;
CREATE INDEX perdure_log_job ON perdure_log (job);

CREATE TABLE perdure_queues (
    name TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0,
    max_depth INTEGER,
    on_full TEXT NOT NULL DEFAULT 'reject',
    drop_below INTEGER,
    fair INTEGER NOT NULL DEFAULT 0,
    weights TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_workers (
    id TEXT NOT NULL PRIMARY KEY,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    running INTEGER NOT NULL,
    about TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- every claim reads which queues are paused
CREATE INDEX perdure_queues_paused ON perdure_queues (name) WHERE paused = 1;

-- which child waits for which parent; a closed edge stays until its child is removed, so that the parent's result is kept
CREATE TABLE perdure_edges (
    parent TEXT NOT NULL,
    child TEXT NOT NULL,
    run_when TEXT NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_edges_open ON perdure_edges (parent, run_when, child) WHERE open = 1;
CREATE INDEX perdure_edges_child ON perdure_edges (child);

-- what else is to be resolved: jobs from a caller's own transaction that are to be admitted (admit = 1), and jobs whose edges
-- are to be resolved although the jobs may not be stored (admit = 0)
CREATE TABLE perdure_unresolved (
    number INTEGER NOT NULL PRIMARY KEY,
    job TEXT NOT NULL,
    admit INTEGER NOT NULL
) STRICT;

-- parked jobs of one queue, task, routing key and limits. priority, rank and head: the claim order of the best of them, or a
-- better one. closed_by: the limits that are used up, 'paused' if its queue is, '' while it is open
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
CREATE UNIQUE INDEX perdure_gates_identity ON perdure_gates (limits, queue, task, coalesce('=' || routing_key, ''));
CREATE INDEX perdure_gates_open ON perdure_gates (queue, task, routing_key, priority DESC, rank, head)
    WHERE closed_by = '';
-- open gates of all queues by task and routing key: a claim for every queue reads these
CREATE INDEX perdure_gates_line ON perdure_gates (task, routing_key, priority DESC, rank, head) WHERE closed_by = '';
CREATE INDEX perdure_gates_closed ON perdure_gates (closed_by, priority DESC, rank, head) WHERE closed_by <> '';

-- used-up limits that close gates. opens_at: when a rate lets the next job start; NULL: when a running job ends
CREATE TABLE perdure_full_limits (
    limits TEXT NOT NULL PRIMARY KEY,
    closed_at INTEGER NOT NULL,
    opens_at INTEGER
) STRICT;
CREATE INDEX perdure_full_limits_full ON perdure_full_limits (limits) WHERE opens_at IS NULL;
CREATE INDEX perdure_full_limits_rate ON perdure_full_limits (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX perdure_full_limits_since ON perdure_full_limits (closed_at) WHERE opens_at IS NOT NULL;

-- starts of limit keys under a rate: JSON, [instant, how many] each; none counts after `ends`
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

-- kv entries: schedules, subscriptions, results of steps …
CREATE TABLE perdure_kv (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER,
    job TEXT,
    PRIMARY KEY (kind, name)
) STRICT;
CREATE INDEX perdure_kv_due ON perdure_kv (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX perdure_kv_job ON perdure_kv (job) WHERE job IS NOT NULL;

-- rows that could not be read. table_name: without our prefix. id: that of the job, or another name of the row. fields: what could
-- not be read, a JSON array. raw: the row, a JSON object
CREATE TABLE perdure_unreadable (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    table_name TEXT NOT NULL,
    fields TEXT NOT NULL,
    raw TEXT NOT NULL
) STRICT;
CREATE INDEX perdure_unreadable_id ON perdure_unreadable (id);
