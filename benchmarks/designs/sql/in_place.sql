-- name: ended
-- Ended jobs stay where they are, so that their indexes are on the same table.
CREATE INDEX hot_prune ON hot (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX hot_counted ON hot (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX hot_dead ON hot (created_at) WHERE state = 'd';

-- name: finish
-- The third version of the row.
WITH found AS MATERIALIZED (
    SELECT place FROM unnest(done_ids, done_attempts, done_stamps) AS said (said_id, said_attempt, said_stamp)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM hot
            WHERE id = said_id AND attempt = said_attempt AND stamp = said_stamp OFFSET 0) AS hold)
UPDATE hot SET state = 'c', version = version + 1, losses = 0, result = said_result, reason = NULL,
    started_at = coalesce(started_at, present), finished_at = present, prune_at = present + 604800000000,
    settled = stamp, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = false
FROM unnest(done_ids, done_results) AS said (said_id, said_result)
WHERE ctid = ANY (ARRAY(SELECT place FROM found)) AND id = said_id;

-- name: count_ended
-- Jobs in a final state.
SELECT count(*) FROM hot WHERE state = 'c'
