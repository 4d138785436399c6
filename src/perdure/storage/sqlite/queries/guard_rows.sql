-- name: numbers
-- The rows of these jobs.
SELECT json_group_array(number) FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: rows
-- What guards check and changes are written to.
SELECT json_group_array(json_array(
    id, queue, state, version, attempt, stamp, accepted_stamp, hidden, leased_by, leased_until, run_at, rank, started_at,
    finished_at, unique_key, holds_key, limits))
FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));
