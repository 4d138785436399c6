-- The first schema. One table holds every job for its whole life; the partial indexes hold only the rows that a
-- question is about, so that ended jobs weigh nothing. Instants and durations are microseconds.

CREATE TABLE holdfast_jobs (
    id TEXT NOT NULL PRIMARY KEY,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    payload TEXT NOT NULL,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    policy INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    expires_at INTEGER,
    prune_at INTEGER,
    keep_last INTEGER,
    stamp INTEGER,
    settled INTEGER,
    leased_by TEXT,
    leased_until INTEGER,
    suspect INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    hidden INTEGER NOT NULL,
    result TEXT,
    progress TEXT,
    errors TEXT,
    reason TEXT,
    key TEXT,
    tenant TEXT,
    routing_key TEXT,
    tags TEXT,
    meta TEXT,
    unique_key TEXT,
    unique_scope TEXT,
    holds_key INTEGER NOT NULL,
    chain_id TEXT,
    after TEXT,
    run_when TEXT NOT NULL,
    waits INTEGER NOT NULL,
    limits TEXT,
    min_version INTEGER NOT NULL
) STRICT;

-- what can be claimed, in lanes of queue, task and routing key
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, task, routing_key, priority DESC, rank, id)
    WHERE state = 'ready' AND parked = 0 AND suspect = 0;
-- what waits, but neither in a lane nor at a gate
CREATE INDEX holdfast_jobs_aside ON holdfast_jobs (queue)
    WHERE state IN ('scheduled', 'blocked') OR (state = 'ready' AND suspect <> 0);
CREATE INDEX holdfast_jobs_suspect ON holdfast_jobs (queue) WHERE state = 'ready' AND suspect = 1;
CREATE INDEX holdfast_jobs_due ON holdfast_jobs (run_at, id) WHERE state = 'scheduled';
-- what is held; for what is held under limits see holdfast_jobs_limited
CREATE INDEX holdfast_jobs_lease ON holdfast_jobs (leased_until) WHERE leased_until IS NOT NULL AND limits IS NULL;
CREATE INDEX holdfast_jobs_expiry ON holdfast_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('blocked', 'scheduled', 'ready');
CREATE INDEX holdfast_jobs_prune ON holdfast_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX holdfast_jobs_counted ON holdfast_jobs (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX holdfast_jobs_created ON holdfast_jobs (created_at);
CREATE INDEX holdfast_jobs_dead ON holdfast_jobs (created_at) WHERE state = 'dead';
CREATE INDEX holdfast_jobs_key ON holdfast_jobs (key) WHERE key IS NOT NULL;
CREATE INDEX holdfast_jobs_chain ON holdfast_jobs (chain_id) WHERE chain_id IS NOT NULL;
CREATE UNIQUE INDEX holdfast_jobs_unique ON holdfast_jobs (unique_key) WHERE holds_key = 1;

-- what jobs have in common that is written once and never changed; the number is made of what it says
CREATE TABLE holdfast_policies (
    number INTEGER NOT NULL PRIMARY KEY,
    max_attempts INTEGER,
    timeout INTEGER,
    backoff TEXT NOT NULL,
    retention TEXT NOT NULL,
    dead_retention TEXT NOT NULL
) STRICT;

-- unique keys of scope any (ends is NULL) and window; a window that is over gets a new row
CREATE TABLE holdfast_keys (
    key TEXT NOT NULL,
    starts INTEGER NOT NULL,
    ends INTEGER,
    job TEXT NOT NULL,
    PRIMARY KEY (key, starts)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_keys_ends ON holdfast_keys (ends) WHERE ends IS NOT NULL;

CREATE TABLE holdfast_log (
    number INTEGER NOT NULL PRIMARY KEY,
    job TEXT NOT NULL,
    line TEXT NOT NULL
) STRICT;
CREATE INDEX holdfast_log_job ON holdfast_log (job);

CREATE TABLE holdfast_queues (
    name TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0,
    max_depth INTEGER,
    on_full TEXT NOT NULL DEFAULT 'reject',
    drop_below INTEGER,
    fair INTEGER NOT NULL DEFAULT 0,
    weights TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_workers (
    id TEXT NOT NULL PRIMARY KEY,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    running INTEGER NOT NULL,
    about TEXT NOT NULL
) STRICT, WITHOUT ROWID;
