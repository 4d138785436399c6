-- The job row is written once; what moves stands in a thin row beside it: waiting, holds, outcomes. The tables of the
-- store itself, with every column and index, and the texts of the lane in the waiting row.

-- name: tables
-- The job's row, and the thin rows that move.
CREATE TABLE jobs ({given}, PRIMARY KEY (id)) PARTITION BY RANGE (id);
-- only the key may serve a lookup by id: a plan made while a partition is empty takes any index that could
CREATE INDEX jobs_created ON jobs (created_at);
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_chain ON jobs (chain_id) WHERE chain_id IS NOT NULL;
CALL daily('jobs');

CREATE TABLE waiting (
    rank bigint NOT NULL,
    run_at bigint NOT NULL,
    expires_at bigint,
    started_at bigint,
    settled bigint,
    urgency integer NOT NULL,
    min_version integer NOT NULL,
    version integer NOT NULL DEFAULT 1,
    attempt integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    waits integer NOT NULL DEFAULT 0,
    id uuid NOT NULL PRIMARY KEY,
    parked boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    key_waits boolean NOT NULL DEFAULT false,
    state text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    held_key text COLLATE "C",
    reason text,
    progress text
) {tuned};
CREATE INDEX waiting_ready ON waiting (queue, task, route, urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect;
CREATE INDEX waiting_aside ON waiting (queue) WHERE state <> 'ready' OR parked OR suspect;
CREATE INDEX waiting_suspect ON waiting (urgency, rank, id) WHERE state = 'ready' AND suspect;
CREATE INDEX waiting_due ON waiting (run_at, id) WHERE state = 'scheduled';
CREATE INDEX waiting_expiry ON waiting (expires_at, id) WHERE expires_at IS NOT NULL;

CREATE TABLE holds (
    created_at bigint NOT NULL,
    stamp bigint NOT NULL,
    leased_until bigint NOT NULL,
    lease bigint NOT NULL,
    run_at bigint,
    rank bigint,
    started_at bigint,
    settled bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    losses integer NOT NULL,
    waits integer,
    id uuid NOT NULL PRIMARY KEY,
    ended boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    task text COLLATE "C" NOT NULL,
    leased_by text NOT NULL,
    held_key text COLLATE "C",
    reason text,
    progress text
) {tuned};
{lease_index}

CREATE TABLE outcomes (
    created_at bigint NOT NULL,
    finished_at bigint,
    prune_at bigint,
    keep_last bigint,
    run_at bigint,
    rank bigint,
    started_at bigint,
    settled bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    losses integer NOT NULL,
    waits integer,
    id uuid NOT NULL,
    hidden boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    task text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    result text,
    held_key text COLLATE "C",
    reason text,
    progress text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX outcomes_brief ON outcomes (prune_at) WHERE prune_at < finished_at + 86400000000;
CREATE INDEX outcomes_counted ON outcomes (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX outcomes_dead ON outcomes (created_at, id) WHERE state = 'dead';
CALL daily('outcomes');

CREATE TABLE held_keys (key text COLLATE "C" PRIMARY KEY, job uuid NOT NULL);

-- name: enqueue
-- The job's row and its first moving row.
INSERT INTO jobs (id, created_at, timeout, lease, urgency, max_attempts, min_version, task, queue, payload)
SELECT id, present, 300000000, 60000000, 0, 3, 1, same_task, same_queue, payload
FROM unnest(given_ids, given_payloads) AS given (id, payload);
INSERT INTO waiting (rank, run_at, urgency, min_version, id, state, queue, task, route)
SELECT present, present, 0, 1, id, 'ready', same_queue, same_task, '' FROM unnest(given_ids) AS given (id);

-- name: finish
-- The hold leaves, the outcome comes.
WITH found AS MATERIALIZED (
    SELECT place FROM unnest(done_ids, done_attempts, done_stamps) AS said (said_id, said_attempt, said_stamp)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM holds
            WHERE id = said_id AND attempt = said_attempt AND stamp = said_stamp AND NOT ended OFFSET 0) AS hold),
gone AS (
    DELETE FROM holds WHERE ctid = ANY (ARRAY(SELECT place FROM found)) RETURNING *),
freed AS (
    DELETE FROM held_keys
    WHERE key = ANY (ARRAY(SELECT held_key FROM gone WHERE held_key IS NOT NULL)))
INSERT INTO outcomes (created_at, finished_at, prune_at, run_at, rank, started_at, settled, version, attempt,
    failures, losses, waits, id, task, state, result, progress)
SELECT created_at, present, present + 604800000000, run_at, rank, coalesce(started_at, present), stamp,
    version + 1, attempt, failures, 0, waits, id, task, 'succeeded', said_result, progress
FROM gone JOIN unnest(done_ids, done_results) AS said (said_id, said_result) ON said_id = id;

-- name: best
-- The best jobs of a lane behind the mark.
SELECT ctid FROM waiting
WHERE queue = want_queue AND task = want_task AND route = ''
    AND state = 'ready' AND NOT parked AND NOT suspect
    AND (urgency, rank, id) > (mark_urgency, mark_rank, mark_id)
    AND min_version <= 1 AND (expires_at IS NULL OR expires_at > present OR started_at IS NOT NULL)
ORDER BY urgency, rank, id LIMIT wanted

-- name: claim
-- The waiting row leaves, the hold comes.
RETURN QUERY
WITH gone AS (
    DELETE FROM waiting WHERE ctid = ANY (ARRAY({best} FOR UPDATE SKIP LOCKED))
    RETURNING *),
taken AS MATERIALIZED (
    SELECT gone.*, job.created_at, job.timeout, job.lease, job.chain_id, job.max_attempts, job.payload,
        job.backoff, job.retention, job.dead_retention, job.run_when, job.routing_key, job.key, job.tenant,
        job.tags, job.meta, job.unique_key, job.unique_scope, job.after, job.limits
    FROM gone CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = gone.id OFFSET 0) AS job),
held AS (
    INSERT INTO holds (created_at, stamp, leased_until, lease, run_at, rank, settled, version, attempt, failures,
        losses, waits, id, suspect, task, leased_by, held_key, reason, progress)
    SELECT created_at, fresh_stamp, present + lease, lease, nullif(run_at, created_at), nullif(rank, run_at),
        settled, version + 1, attempt + 1, failures, losses, nullif(waits, 0), id, suspect, task, worker,
        CASE WHEN NOT key_waits THEN held_key END, reason, progress
    FROM taken),
freed AS (
    DELETE FROM held_keys
    WHERE key = ANY (ARRAY(SELECT held_key FROM gone WHERE key_waits AND held_key IS NOT NULL)))
SELECT id, created_at, timeout, lease, expires_at, chain_id, urgency, max_attempts, min_version, task, queue,
    payload, {policies}, routing_key, key, tenant,
    tags, meta, unique_key, unique_scope, after, limits, rank, run_at, NULL::bigint, fresh_stamp, settled,
    present + lease, version + 1, attempt + 1, failures, losses, suspect, worker, progress, NULL
FROM taken;

-- name: count_ended
-- Jobs with an outcome.
SELECT count(*) FROM outcomes

-- name: count_open
-- Jobs that wait or are held.
SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM holds)
