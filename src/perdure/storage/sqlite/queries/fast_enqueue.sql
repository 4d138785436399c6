-- name: insert_jobs
-- Jobs that differ only in their payloads, a JSON object by their ids.
INSERT INTO perdure_jobs (
    id, task, queue, priority, lease, limits, state, in_lane, index_state, rank, run_at, parked, created_at,
    version, attempt, failures, losses, suspect, hidden, holds_key)
SELECT input.key, :task, :queue, :priority, :lease, :limits, :state, :in_lane, :index_state, :run_at, :run_at, :parked, :now,
    1, 0, 0, 0, 0, 0, 0
FROM json_each(:payloads) AS input WHERE true
ON CONFLICT (id) DO NOTHING;

-- name: insert_bodies
-- Their bodies, unless they were stored before.
INSERT INTO perdure_bodies (number, payload, policy, min_version, run_when, waits)
SELECT job.number, input.value, :policy, {row_version}, 'succeeded', 0
FROM json_each(:payloads) AS input CROSS JOIN perdure_jobs AS job ON job.id = input.key
WHERE true
ON CONFLICT (number) DO NOTHING;
