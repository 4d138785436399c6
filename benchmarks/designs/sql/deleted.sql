-- name: ended
-- Ended jobs are gone.

-- name: finish
-- Nothing is kept.
WITH found AS MATERIALIZED (
    SELECT place FROM unnest(done_ids, done_attempts, done_stamps) AS said (said_id, said_attempt, said_stamp)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM hot
            WHERE id = said_id AND attempt = said_attempt AND stamp = said_stamp OFFSET 0) AS hold)
DELETE FROM hot WHERE ctid = ANY (ARRAY(SELECT place FROM found));

-- name: count_ended
-- None.
SELECT 0::bigint
