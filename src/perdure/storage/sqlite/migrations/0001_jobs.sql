-- The first schema. One table holds every job for its whole life; the partial indexes hold only the rows that a
-- question is about, so that ended jobs weigh nothing. Instants and durations are microseconds.

CREATE TABLE perdure_jobs (
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
    accepted_stamp INTEGER,
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
CREATE INDEX perdure_jobs_ready ON perdure_jobs (queue, task, routing_key, priority DESC, rank, id)
    WHERE state = 'ready' AND parked = 0 AND suspect = 0;
-- what waits, but neither in a lane nor at a gate
CREATE INDEX perdure_jobs_aside ON perdure_jobs (queue)
    WHERE state IN ('scheduled', 'blocked') OR (state = 'ready' AND suspect <> 0);
CREATE INDEX perdure_jobs_suspect ON perdure_jobs (queue) WHERE state = 'ready' AND suspect = 1;
CREATE INDEX perdure_jobs_due ON perdure_jobs (run_at, id) WHERE state = 'scheduled';
-- what is held; for what is held under limits see perdure_jobs_limited
CREATE INDEX perdure_jobs_lease ON perdure_jobs (leased_until) WHERE leased_until IS NOT NULL AND limits IS NULL;
CREATE INDEX perdure_jobs_expiry ON perdure_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('blocked', 'scheduled', 'ready');
CREATE INDEX perdure_jobs_prune ON perdure_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX perdure_jobs_counted ON perdure_jobs (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX perdure_jobs_created ON perdure_jobs (created_at);
CREATE INDEX perdure_jobs_dead ON perdure_jobs (created_at) WHERE state = 'dead';
CREATE INDEX perdure_jobs_key ON perdure_jobs (key) WHERE key IS NOT NULL;
CREATE INDEX perdure_jobs_chain ON perdure_jobs (chain_id) WHERE chain_id IS NOT NULL;
CREATE UNIQUE INDEX perdure_jobs_unique ON perdure_jobs (unique_key) WHERE holds_key = 1;

-- what jobs have in common that is written once and never changed; the number is made of what it says
CREATE TABLE perdure_policies (
    number INTEGER NOT NULL PRIMARY KEY,
    max_attempts INTEGER,
    timeout INTEGER,
    backoff TEXT NOT NULL,
    retention TEXT NOT NULL,
    dead_retention TEXT NOT NULL
) STRICT;

-- unique keys of scope any (ends is NULL) and window; a window that is over gets a new row
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
