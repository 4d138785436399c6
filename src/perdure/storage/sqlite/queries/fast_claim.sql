-- name: head
-- What the best job of a lane or gate has in common with most others.
SELECT priority, lease, max_attempts, timeout, backoff, retention, dead_retention
FROM {whole} CROSS JOIN perdure_policies AS kept ON kept.number = body.policy
WHERE {source} ORDER BY priority DESC, rank, id LIMIT 1;

-- name: best
-- The best jobs: their row numbers, when each was created and its id ('' where it is not ordinary), and their payloads.
SELECT json_group_array(number), CAST(group_concat(short, char(30)) AS BLOB), CAST(group_concat(payload, char(30)) AS BLOB)
FROM (
    SELECT number, CASE WHEN {ordinary} THEN created_at || ' ' || id ELSE '' END AS short, payload
    FROM {whole}
    WHERE {source} AND {may_run}
    ORDER BY priority DESC, rank, id LIMIT :limit);
