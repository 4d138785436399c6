-- name: open_gates
-- Whether a closed gate may open, up to two open gates, and the running jobs by their limits.
SELECT EXISTS (SELECT 1 FROM perdure_full_limits WHERE opens_at IS NULL)
        OR EXISTS (SELECT 1 FROM perdure_full_limits WHERE opens_at IS NOT NULL AND opens_at <= ?),
    (SELECT json_group_array(json_array(number, limits, queue, task, routing_key, priority, rank, head)) FROM (
        SELECT number, limits, queue, task, routing_key, priority, rank, head FROM perdure_gates
        WHERE closed_by = '' ORDER BY queue LIMIT 2)),
    ({running});
