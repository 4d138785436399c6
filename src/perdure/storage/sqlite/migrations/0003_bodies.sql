-- A job in two rows: one that its moves write anew again and again, kept short for that, and one with what it came with.

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
INSERT INTO perdure_bodies (
    number, payload, policy, min_version, run_when, waits, key, tenant, tags, meta, unique_scope, chain_id, after, next_id,
    progress, errors)
SELECT rowid, payload, policy, min_version, run_when, waits, key, tenant, tags, meta, unique_scope, chain_id, after, next_id,
    progress, errors
FROM perdure_jobs ORDER BY rowid;

-- in_lane: 1 while it can be claimed from a lane. parked: 1 while it waits for room under its limits. apart: where it stands
-- otherwise, 'suspect', 'scheduled', 'blocked' or 'dead'. None is set while it runs and once it has ended well, so that an end
-- touches no index of what waits
CREATE TABLE perdure_rows (
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
    releases INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO perdure_rows (
    number, id, state, in_lane, apart, queue, task, routing_key, priority, rank, version, attempt, failures, losses, lease,
    created_at, run_at, started_at, finished_at, expires_at, prune_at, keep_last, stamp, accepted_stamp, leased_by, leased_until,
    suspect, parked, hidden, result, reason, unique_key, holds_key, limits, followed, releases)
SELECT rowid, id, state,
    CASE WHEN state = 'ready' AND parked = 0 AND suspect = 0 THEN 1 END,
    CASE WHEN state IN ('scheduled', 'blocked', 'dead') THEN state
        WHEN state = 'ready' AND suspect <> 0 THEN 'suspect' END,
    queue, task, routing_key, priority, rank, version, attempt, failures, losses, lease,
    created_at, run_at, started_at, finished_at, expires_at, prune_at, keep_last, stamp, accepted_stamp, leased_by, leased_until,
    suspect, parked, hidden, result, reason, unique_key, holds_key, limits, followed, releases
FROM perdure_jobs ORDER BY rowid;

DROP TABLE perdure_jobs;
ALTER TABLE perdure_rows RENAME TO perdure_jobs;

CREATE UNIQUE INDEX perdure_jobs_id ON perdure_jobs (id);
-- what can be claimed, in lanes of queue, task and routing key
CREATE INDEX perdure_jobs_ready ON perdure_jobs (queue, task, routing_key, priority DESC, rank, id) WHERE in_lane = 1;
-- what waits for room under its limits, by gate; the queue comes first, because its jobs are counted
CREATE INDEX perdure_jobs_parked ON perdure_jobs (queue, limits, task, routing_key, priority DESC, rank, id)
    WHERE parked = 1 AND suspect = 0;
-- what waits, but neither in a lane nor at a gate
CREATE INDEX perdure_jobs_aside ON perdure_jobs (queue) WHERE apart IN ('suspect', 'scheduled', 'blocked');
CREATE INDEX perdure_jobs_suspect ON perdure_jobs (queue) WHERE apart = 'suspect';
CREATE INDEX perdure_jobs_due ON perdure_jobs (run_at, id) WHERE apart = 'scheduled';
CREATE INDEX perdure_jobs_dead ON perdure_jobs (created_at) WHERE apart = 'dead';
CREATE INDEX perdure_jobs_expiry ON perdure_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND (in_lane = 1 OR parked = 1 OR apart IN ('suspect', 'scheduled', 'blocked'));
-- what is held; what is held under limits is counted, never kept in a counter
CREATE INDEX perdure_jobs_lease ON perdure_jobs (leased_until) WHERE leased_until IS NOT NULL AND limits IS NULL;
CREATE INDEX perdure_jobs_limited ON perdure_jobs (limits, leased_until) WHERE limits IS NOT NULL AND stamp IS NOT NULL;
CREATE INDEX perdure_jobs_prune ON perdure_jobs (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX perdure_jobs_counted ON perdure_jobs (task, finished_at) WHERE keep_last IS NOT NULL;
-- ended jobs whose edges are to be looked at: the end of a job writes nothing more than it does without followers
CREATE INDEX perdure_jobs_releasing ON perdure_jobs (finished_at, id) WHERE releases = 1 AND finished_at IS NOT NULL;
CREATE INDEX perdure_jobs_created ON perdure_jobs (created_at);
CREATE UNIQUE INDEX perdure_jobs_unique ON perdure_jobs (unique_key) WHERE holds_key = 1;
CREATE INDEX perdure_bodies_key ON perdure_bodies (key) WHERE key IS NOT NULL;
CREATE INDEX perdure_bodies_chain ON perdure_bodies (chain_id) WHERE chain_id IS NOT NULL;

CREATE TRIGGER perdure_jobs_gone AFTER DELETE ON perdure_jobs BEGIN
    DELETE FROM perdure_bodies WHERE number = old.number;
END;
