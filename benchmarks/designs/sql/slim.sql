-- Narrow once more: a waiting row carries the hash of its lane instead of three texts, and NULL for all that is still
-- as it was at the enqueue. Readers find the texts in the job's row.

-- name: tables
-- The job's row, and the thin rows that move.
CREATE TABLE jobs ({given}, PRIMARY KEY (id)) PARTITION BY RANGE (id);
-- only the key may serve a lookup by id: a plan made while a partition is empty takes any index that could
CREATE INDEX jobs_created ON jobs (created_at);
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_chain ON jobs (chain_id) WHERE chain_id IS NOT NULL;
CALL daily('jobs');

CREATE TABLE waiting (
    id uuid NOT NULL PRIMARY KEY,
    lane bigint NOT NULL,
    rank bigint NOT NULL,
    urgency integer NOT NULL,
    min_version integer,
    version integer,
    attempt integer,
    failures integer,
    losses integer,
    run_at bigint,
    expires_at bigint,
    started_at bigint,
    settled bigint,
    progress text
) {tuned};
CREATE INDEX waiting_lane ON waiting (lane, urgency, rank, id);
CREATE INDEX waiting_expiry ON waiting (expires_at) WHERE expires_at IS NOT NULL;

-- scheduled, blocked, parked and suspect jobs
CREATE TABLE aside (
    LIKE waiting,
    queue text NOT NULL,
    state "char" NOT NULL,
    waits integer,
    suspect boolean,
    reason text,
    PRIMARY KEY (id)
);
CREATE INDEX aside_due ON aside (run_at, id) WHERE state = 's';
CREATE INDEX aside_queue ON aside (queue);
CREATE INDEX aside_expiry ON aside (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE holds (
    id uuid NOT NULL PRIMARY KEY,
    stamp bigint NOT NULL,
    leased_until bigint NOT NULL,
    attempt integer NOT NULL,
    version integer NOT NULL,
    leased_by text NOT NULL,
    rank bigint,
    run_at bigint,
    started_at bigint,
    settled bigint,
    failures integer,
    losses integer,
    ended boolean,
    suspect boolean,
    held_key text COLLATE "C",
    progress text
) {tuned};
{lease_index}

CREATE TABLE outcomes (
    id uuid NOT NULL,
    finished_at bigint NOT NULL,
    prune_at bigint,
    settled bigint,
    started_at bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    state "char" NOT NULL,
    hidden boolean NOT NULL,
    result text,
    created_at bigint,
    rank bigint,
    run_at bigint,
    failures integer,
    losses integer,
    keep_last integer,
    task text COLLATE "C",
    held_key text COLLATE "C",
    progress text,
    reason text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX outcomes_brief ON outcomes (prune_at) WHERE prune_at < finished_at + 86400000000;
CREATE INDEX outcomes_counted ON outcomes (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX outcomes_dead ON outcomes (created_at, id) WHERE state = 'd';
CALL daily('outcomes');

CREATE TABLE held_keys (key text COLLATE "C" PRIMARY KEY, job uuid NOT NULL);

-- The number of a lane: anybody can compute it, so that an enqueue needs no dictionary.
CREATE FUNCTION lane_of(queue text, task text, routing_key text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended(concat_ws(chr(31), queue, task, '=' || routing_key), 0) $$;

-- name: enqueue
-- The job's row and its first moving row.
INSERT INTO jobs (id, created_at, timeout, lease, urgency, max_attempts, min_version, task, queue, payload)
SELECT id, present, 300000000, 60000000, 0, 3, 1, same_task, same_queue, payload
FROM unnest(given_ids, given_payloads) AS given (id, payload);
INSERT INTO waiting (id, lane, rank, urgency)
SELECT id, lane_of(same_queue, same_task, NULL), present, 0 FROM unnest(given_ids) AS given (id);

-- name: finish
-- The hold leaves, the outcome comes.
WITH found AS MATERIALIZED (
    SELECT place FROM unnest(done_ids, done_attempts, done_stamps) AS said (said_id, said_attempt, said_stamp)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM holds
            WHERE id = said_id AND attempt = said_attempt AND stamp = said_stamp AND ended IS NULL OFFSET 0) AS hold),
gone AS (
    DELETE FROM holds WHERE ctid = ANY (ARRAY(SELECT place FROM found)) RETURNING *),
freed AS (
    DELETE FROM held_keys
    WHERE key = ANY (ARRAY(SELECT held_key FROM gone WHERE held_key IS NOT NULL)))
INSERT INTO outcomes (id, rank, run_at, started_at, finished_at, prune_at, settled, version, attempt, failures,
    state, hidden, result, progress)
SELECT id, rank, run_at, coalesce(started_at, present), present, present + 604800000000, stamp, version + 1,
    attempt, failures, 'c', false, said_result, progress
FROM gone JOIN unnest(done_ids, done_results) AS said (said_id, said_result) ON said_id = id;

-- name: best
-- The best jobs of a lane behind the mark.
SELECT ctid FROM waiting
WHERE lane = lane_of(want_queue, want_task, NULL) AND (urgency, rank, id) > (mark_urgency, mark_rank, mark_id)
    AND (min_version IS NULL OR min_version <= 1)
    AND (expires_at IS NULL OR expires_at > present OR started_at IS NOT NULL)
ORDER BY urgency, rank, id LIMIT wanted

-- name: claim
-- The waiting row leaves, the hold comes.
RETURN QUERY
WITH gone AS (
    DELETE FROM waiting WHERE ctid = ANY (ARRAY({best} FOR UPDATE SKIP LOCKED))
    RETURNING *),
taken AS MATERIALIZED (
    SELECT job.*, gone.rank, coalesce(gone.run_at, gone.rank) AS run_at, gone.settled,
        coalesce(gone.version, 1) + 1 AS version, coalesce(gone.attempt, 0) + 1 AS attempt, gone.failures,
        gone.losses, gone.progress
    FROM gone CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = gone.id OFFSET 0) AS job),
held AS (
    INSERT INTO holds (id, rank, run_at, stamp, leased_until, settled, version, attempt, failures, losses,
        leased_by, progress)
    SELECT id, nullif(rank, created_at), nullif(run_at, created_at), fresh_stamp, present + lease, settled,
        version, attempt, failures, losses, worker, progress
    FROM taken)
SELECT id, created_at, timeout, lease, expires_at, chain_id, urgency, max_attempts, min_version, task, queue,
    payload, {policies}, routing_key, key, tenant,
    tags, meta, unique_key, unique_scope, after, limits, rank, run_at, NULL::bigint, fresh_stamp, settled,
    present + lease, version, attempt, coalesce(failures, 0), coalesce(losses, 0), false, worker, progress, NULL
FROM taken;

-- name: count_ended
-- Jobs with an outcome.
SELECT count(*) FROM outcomes

-- name: count_open
-- Jobs that wait or are held.
SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM aside) + (SELECT count(*) FROM holds)
