-- name: ended
-- Ended jobs move to a table that is only added to.
CREATE TABLE history ({given},{moving},
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX history_created ON history (created_at);
CREATE INDEX history_key ON history (key) WHERE key IS NOT NULL;
CREATE INDEX history_chain ON history (chain_id) WHERE chain_id IS NOT NULL;
CREATE INDEX history_prune ON history (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX history_counted ON history (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX history_dead ON history (created_at) WHERE state = 'd';
CALL daily('history');

-- name: finish
-- The row leaves one table and enters the other, whole.
WITH found AS MATERIALIZED (
    SELECT place FROM unnest(done_ids, done_attempts, done_stamps) AS said (said_id, said_attempt, said_stamp)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM hot
            WHERE id = said_id AND attempt = said_attempt AND stamp = said_stamp OFFSET 0) AS hold),
gone AS (
    DELETE FROM hot WHERE ctid = ANY (ARRAY(SELECT place FROM found)) RETURNING *)
INSERT INTO history ({given_names}, {moving_names})
SELECT {given_names}, rank, run_at, coalesce(started_at, present), present, present + 604800000000, NULL, stamp, NULL,
    version + 1, attempt, failures, 0, waits, NULL, 'c', suspect, parked, hidden, false, NULL, said_result, progress,
    errors, NULL
FROM gone JOIN unnest(done_ids, done_results) AS said (said_id, said_result) ON said_id = id;

-- name: count_ended
-- Jobs in a final state.
SELECT count(*) FROM history
