-- Nothing is ever changed: an enqueue writes batches under rising numbers, a claim takes the next number and adds a
-- claim row, a completion adds an outcome. Plain queues only: order is that of the batches, a batch is claimed whole.
-- Retried, delayed and urgent jobs would need the tables of another design beside it.

-- name: tables
-- Jobs with the number of their batch, claims of batches, outcomes.
CREATE TABLE jobs ({given},
    batch bigint NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX jobs_batch ON jobs (batch);
-- only the key may serve a lookup by id: a plan made while a partition is empty takes any index that could
CREATE INDEX jobs_created ON jobs (created_at);
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_chain ON jobs (chain_id) WHERE chain_id IS NOT NULL;
CALL daily('jobs');

CREATE TABLE claims (
    batch bigint NOT NULL,
    stamp bigint NOT NULL,
    leased_until bigint NOT NULL,
    attempt integer NOT NULL,
    leased_by text NOT NULL,
    PRIMARY KEY (batch, attempt)
);
CREATE INDEX claims_lease ON claims (leased_until);

CREATE TABLE outcomes (
    id uuid NOT NULL,
    batch bigint NOT NULL,
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
    failures integer,
    losses integer,
    keep_last integer,
    task text COLLATE "C",
    progress text,
    errors text,
    reason text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX outcomes_brief ON outcomes (prune_at) WHERE prune_at < finished_at + 86400000000;
CREATE INDEX outcomes_counted ON outcomes (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX outcomes_dead ON outcomes (created_at, id) WHERE state = 'd';
CALL daily('outcomes');

-- Numbers of batches: given to enqueues, and to claims. A number whose enqueue was rolled back would have to be skipped
-- by upkeep; nothing here rolls back.
CREATE SEQUENCE written MINVALUE 0 START 0;
CREATE SEQUENCE handed_out MINVALUE 0 START 0;

-- name: enqueue
-- Batches of the size in which they are claimed.
DECLARE
    number bigint;
    first integer := 1;
BEGIN
    WHILE first <= cardinality(given_ids) LOOP
        number := nextval('written');
        INSERT INTO jobs (id, created_at, timeout, lease, urgency, max_attempts, min_version, task, queue, payload, batch)
        SELECT id, present, 300000000, 60000000, 0, 3, 1, same_task, same_queue, payload, number
        FROM unnest(given_ids[first:first + {batch} - 1], given_payloads[first:first + {batch} - 1])
            AS given (id, payload);
        first := first + {batch};
    END LOOP;
END;

-- name: finish
-- Outcomes, if the last claim of the batch is the one that speaks.
INSERT INTO outcomes (id, batch, started_at, finished_at, prune_at, settled, version, attempt, state, hidden,
    result)
SELECT id, job.batch, present, present, present + 604800000000, said_stamp, 3, said_attempt, 'c', false,
    said_result
FROM unnest(done_ids, done_attempts, done_stamps, done_results)
        AS said (said_id, said_attempt, said_stamp, said_result)
    CROSS JOIN LATERAL (SELECT id, batch FROM jobs WHERE id = said_id OFFSET 0) AS job
    CROSS JOIN LATERAL (
        SELECT attempt, stamp FROM claims WHERE batch = job.batch ORDER BY attempt DESC LIMIT 1) AS claim
WHERE claim.attempt = said_attempt AND claim.stamp = said_stamp;

-- name: claim
-- The next batch, whole.
DECLARE
    number bigint;
BEGIN
    -- the next number, if its batch is there: one claimer looks at a time, and none waits for another's commit
    PERFORM pg_advisory_lock(1);
    SELECT CASE WHEN is_called THEN last_value + 1 ELSE 0 END INTO number FROM handed_out;
    IF EXISTS (SELECT 1 FROM jobs WHERE batch = number) THEN
        PERFORM nextval('handed_out');
    ELSE
        number := NULL;
    END IF;
    PERFORM pg_advisory_unlock(1);
    IF number IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO claims (batch, stamp, leased_until, attempt, leased_by)
    VALUES (number, fresh_stamp, present + 60000000, 1, worker);
    RETURN QUERY
    SELECT id, created_at, timeout, lease, expires_at, chain_id, urgency, max_attempts, min_version, task, queue,
        payload, {policies}, routing_key, key, tenant,
        tags, meta, unique_key, unique_scope, after, limits, created_at, created_at, NULL::bigint, fresh_stamp,
        NULL::bigint, present + lease, 2, 1, 0, 0, false, worker, NULL, NULL
    FROM jobs WHERE batch = number ORDER BY id;
END;

-- name: best
-- The batch that was claimed last.
SELECT ctid FROM jobs WHERE batch = (SELECT last_value FROM handed_out) ORDER BY id

-- name: count_ended
-- Jobs with an outcome.
SELECT count(*) FROM outcomes

-- name: count_open
-- Jobs without one.
SELECT (SELECT count(*) FROM jobs) - (SELECT count(*) FROM outcomes)
