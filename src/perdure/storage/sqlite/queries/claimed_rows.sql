-- name: in_lane
-- The jobs of a lane.
:limits IS NULL AND queue = :queue AND task = :task AND routing_key IS :routing_key AND in_lane = 1 AND state = 'ready';

-- name: at_gate
-- The jobs of a gate.
limits = :limits AND queue = :queue AND task = :task AND routing_key IS :routing_key AND parked = 1 AND suspect = 0;

-- name: best_of_source
-- The best jobs of a lane or gate, as they will be once claimed.
SELECT json_group_array(number), CAST('[' || coalesce(group_concat(record), '') || ']' AS BLOB) FROM (
    SELECT number, {claimed} AS record FROM {whole}
    WHERE {source} AND {may_run}
    ORDER BY priority DESC, rank, id LIMIT :limit)

-- name: by_number
-- Jobs by their row numbers in the given order, as they will be once claimed.
SELECT json_group_array(job.number), CAST('[' || coalesce(group_concat({claimed}), '') || ']' AS BLOB)
FROM json_each(:numbers) AS wanted
CROSS JOIN perdure_jobs AS job ON job.number = wanted.value
CROSS JOIN perdure_bodies AS body ON body.number = wanted.value

-- name: start
-- Claimed jobs are running. A job with a key of scope `waiting` frees it; the body is read only where there is a key.
UPDATE perdure_jobs SET
    state = 'running', version = min(version, 4611686018427387904) + 1, attempt = min(attempt, 4611686018427387904) + 1,
    stamp = ?, leased_by = ?, leased_until = min(lease, 4611686018427387904) + ?, started_at = NULL,
    in_lane = NULL, index_state = NULL, parked = 0,
    holds_key = CASE holds_key WHEN 0 THEN 0 ELSE (
        SELECT unique_scope FROM perdure_bodies AS body WHERE body.number = perdure_jobs.number) IS NOT 'waiting' END
WHERE number IN (SELECT value FROM json_each(?));
