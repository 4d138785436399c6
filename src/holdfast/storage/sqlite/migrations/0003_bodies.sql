-- A job in two rows: one that its moves write anew again and again, kept short for that, and one with what it came with.

CREATE TABLE holdfast_bodies (
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
INSERT INTO holdfast_bodies (
    number, payload, policy, min_version, run_when, waits, key, tenant, tags, meta, unique_scope, chain_id, after, next_id,
    progress, errors)
SELECT rowid, payload, policy, min_version, run_when, waits, key, tenant, tags, meta, unique_scope, chain_id, after, next_id,
    progress, errors
FROM holdfast_jobs ORDER BY rowid;

-- in_lane: 1 while it can be claimed from a lane. parked: 1 while it waits for room under its limits. apart: where it stands
-- otherwise, 'suspect', 'scheduled', 'blocked' or 'dead'. None is set while it runs and once it has ended well, so that an end
-- touches no index of what waits
CREATE TABLE holdfast_rows (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    in_lane INTEGER,
    apart TEXT,
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
    settled INTEGER,
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
    releases INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO holdfast_rows (
    number, id, state, in_lane, apart, queue, task, routing_key, priority, rank, version, attempt, failures, losses, lease,
    created_at, run_at, started_at, finished_at, expires_at, prune_at, keep_last, stamp, settled, leased_by, leased_until,
    suspect, parked, hidden, result, reason, unique_key, holds_key, limits, followed, releases)
SELECT rowid, id, state,
    CASE WHEN state = 'ready' AND parked = 0 AND suspect = 0 THEN 1 END,
    CASE WHEN state IN ('scheduled', 'blocked', 'dead') THEN state
        WHEN state = 'ready' AND suspect <> 0 THEN 'suspect' END,
    queue, task, routing_key, priority, rank, version, attempt, failures, losses, lease,
    created_at, run_at, started_at, finished_at, expires_at, prune_at, keep_last, stamp, settled, leased_by, leased_until,
    suspect, parked, hidden, result, reason, unique_key, holds_key, limits, followed, releases
FROM holdfast_jobs ORDER BY rowid;

DROP TABLE holdfast_jobs;
ALTER TABLE holdfast_rows RENAME TO holdfast_jobs;

CREATE UNIQUE INDEX holdfast_jobs_id ON holdfast_jobs (id);
-- what can be claimed, in lanes of queue, task and routing key
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, task, routing_key, priority DESC, rank, id) WHERE in_lane = 1;
-- what waits for room under its limits, by gate; the queue comes first, because its jobs are counted
CREATE INDEX holdfast_jobs_parked ON holdfast_jobs (queue, limits, task, routing_key, priority DESC, rank, id)
    WHERE parked = 1 AND suspect = 0;
-- what waits, but neither in a lane nor at a gate
CREATE INDEX holdfast_jobs_aside ON holdfast_jobs (queue) WHERE apart IN ('suspect', 'scheduled', 'blocked');
CREATE INDEX holdfast_jobs_suspect ON holdfast_jobs (queue) WHERE apart = 'suspect';
CREATE INDEX holdfast_jobs_due ON holdfast_jobs (run_at, id) WHERE apart = 'scheduled';
CREATE INDEX holdfast_jobs_dead ON holdfast_jobs (created_at) WHERE apart = 'dead';
CREATE INDEX holdfast_jobs_expiry ON holdfast_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND (in_lane = 1 OR parked = 1 OR apart IN ('suspect', 'scheduled', 'blocked'));
-- what is held; what is held under limits is counted, never kept in a counter
CREATE INDEX holdfast_jobs_lease ON holdfast_jobs (leased_until) WHERE leased_until IS NOT NULL AND limits IS NULL;
CREATE INDEX holdfast_jobs_limited ON holdfast_jobs (limits, leased_until) WHERE limits IS NOT NULL AND stamp IS NOT NULL;
CREATE INDEX holdfast_jobs_prune ON holdfast_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX holdfast_jobs_counted ON holdfast_jobs (task, finished_at) WHERE keep_last IS NOT NULL;
-- ended jobs whose edges are to be looked at: the end of a job writes nothing more than it does without followers
CREATE INDEX holdfast_jobs_releasing ON holdfast_jobs (finished_at, id) WHERE releases = 1 AND finished_at IS NOT NULL;
CREATE INDEX holdfast_jobs_created ON holdfast_jobs (created_at);
CREATE UNIQUE INDEX holdfast_jobs_unique ON holdfast_jobs (unique_key) WHERE holds_key = 1;
CREATE INDEX holdfast_bodies_key ON holdfast_bodies (key) WHERE key IS NOT NULL;
CREATE INDEX holdfast_bodies_chain ON holdfast_bodies (chain_id) WHERE chain_id IS NOT NULL;

CREATE TRIGGER holdfast_jobs_gone AFTER DELETE ON holdfast_jobs BEGIN
    DELETE FROM holdfast_bodies WHERE number = old.number;
END;
