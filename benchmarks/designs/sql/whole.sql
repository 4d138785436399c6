-- The whole record is one row, which moves: ready, running, and whatever the design does with ended ones.
-- States: b blocked, s scheduled, r ready, u running, c succeeded, d dead.

-- name: tables
-- One row for the whole life; the partial indexes hold only the rows that a question is about.
CREATE TABLE hot ({given},{moving},
    PRIMARY KEY (id)
) {tuned};
CREATE INDEX hot_ready ON hot (queue, task, routing_key, urgency, rank, id)
    WHERE state = 'r' AND NOT parked AND NOT suspect;
CREATE INDEX hot_aside ON hot (queue) WHERE state IN ('s', 'b') OR (state = 'r' AND (parked OR suspect));
CREATE INDEX hot_suspect ON hot (queue) WHERE state = 'r' AND suspect;
CREATE INDEX hot_due ON hot (run_at, id) WHERE state = 's';
CREATE INDEX hot_lease ON hot (leased_until) WHERE leased_until IS NOT NULL;
CREATE INDEX hot_expiry ON hot (expires_at) WHERE expires_at IS NOT NULL AND state IN ('b', 's', 'r');
CREATE INDEX hot_created ON hot (created_at);
CREATE INDEX hot_key ON hot (key) WHERE key IS NOT NULL;
CREATE INDEX hot_chain ON hot (chain_id) WHERE chain_id IS NOT NULL;
CREATE UNIQUE INDEX hot_unique ON hot (unique_key) WHERE holds_key;


{ended}

-- name: enqueue
-- The first version of the row.
INSERT INTO hot (id, created_at, timeout, lease, urgency, max_attempts, min_version, task, queue, payload, rank,
    run_at, version, attempt, failures, losses, waits, state, suspect, parked, hidden, holds_key)
SELECT id, present, 300000000, 60000000, 0, 3, 1, same_task, same_queue, payload, present, present, 1, 0, 0, 0, 0,
    'r', false, false, false, false
FROM unnest(given_ids, given_payloads) AS given (id, payload);

-- name: best
-- The best jobs of a lane behind the mark.
SELECT ctid FROM hot
WHERE queue = want_queue AND task = want_task AND routing_key IS NULL
    AND state = 'r' AND NOT parked AND NOT suspect
    AND (urgency, rank, id) > (mark_urgency, mark_rank, mark_id)
    AND min_version <= 1 AND (expires_at IS NULL OR expires_at > present OR started_at IS NOT NULL)
ORDER BY queue, task, routing_key, urgency, rank, id LIMIT wanted

-- name: claim
-- The second version of the row.
RETURN QUERY
UPDATE hot SET state = 'u', version = version + 1, attempt = attempt + 1, stamp = fresh_stamp,
    leased_by = worker, leased_until = present + lease, started_at = NULL,
    holds_key = holds_key AND unique_scope <> 'waiting'
WHERE ctid = ANY (ARRAY({best} FOR UPDATE SKIP LOCKED))
RETURNING id, created_at, timeout, lease, expires_at, chain_id, urgency, max_attempts, min_version, task, queue,
    payload, {policies}, routing_key, key, tenant,
    tags, meta, unique_key, unique_scope, after, limits, rank, run_at, started_at, stamp, settled, leased_until,
    version, attempt, failures, losses, suspect, leased_by, progress, errors;

-- name: count_open
-- Jobs in no final state.
SELECT count(*) FROM hot WHERE state <> 'c'
