-- name: in_lane
-- Where jobs of a lane stand.
:limits IS NULL AND queue = :queue AND task = :task AND routing_key IS :routing_key AND in_lane = 1 AND state = 'ready';

-- name: at_gate
-- Where jobs of a gate stand.
limits = :limits AND queue = :queue AND task = :task AND routing_key IS :routing_key AND parked = 1 AND suspect = 0;

-- name: head
-- What the best job of them has in common with most others.
SELECT priority, lease, max_attempts, timeout, backoff, retention, dead_retention
FROM {whole} CROSS JOIN perdure_policies AS kept ON kept.number = body.policy
WHERE {place} ORDER BY priority DESC, rank, id LIMIT 1;

-- name: best
-- The best of them: their numbers, when each was created and its id ('' where it is not as usual), and their payloads.
SELECT json_group_array(number), CAST(group_concat(short, char(30)) AS BLOB), CAST(group_concat(payload, char(30)) AS BLOB)
FROM (
    SELECT number, CASE WHEN {usual} THEN created_at || ' ' || id ELSE '' END AS short, payload
    FROM {whole}
    WHERE {place} AND min_version <= {row_version} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)
    ORDER BY priority DESC, rank, id LIMIT :limit);
