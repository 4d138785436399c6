-- name: succeed
-- The plain success of a holder, the most common change of all. A running row is never hidden nor counted.
WITH given (id, attempt, stamp, failures, result, prune_at, started_at) AS (VALUES {values})
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = given.failures, losses = 0, suspect = 0,
    result = given.result, reason = NULL, started_at = coalesce(given.started_at, perdure_jobs.started_at),
    finished_at = ?, prune_at = given.prune_at,
    accepted_stamp = given.stamp, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM given
WHERE perdure_jobs.id = given.id AND state = 'running'
    AND perdure_jobs.attempt = given.attempt AND perdure_jobs.stamp = given.stamp;

-- name: succeed_alike
-- The same of jobs without a result that have all but their starts in common, given as a JSON object.
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = ?, losses = 0, suspect = 0,
    result = NULL, reason = NULL, started_at = coalesce(given.value, perdure_jobs.started_at),
    finished_at = ?, prune_at = ?,
    accepted_stamp = ?, stamp = NULL, leased_by = NULL, leased_until = NULL, holds_key = 0
FROM json_each(?) AS given
WHERE perdure_jobs.id = given.key AND state = 'running'
    AND perdure_jobs.attempt = ? AND perdure_jobs.stamp = ?;

-- name: succeed_near
-- The same of usual jobs whose rows lie close together, with or without results: from one row to another, with what is
-- expected in each (60 characters: 36 of an id, 8 each of its start, of the place of its result and of the length of that).
-- A usual job has no key, no reason, and nobody suspects it: it touches no index but those of holds and of ended jobs.
UPDATE perdure_jobs SET
    state = 'succeeded', version = min(version, 4611686018427387904) + 1, failures = :failures,
    result = nullif(CAST(substr(:results, CAST(substr(:rows, (number - :first) * 60 + 45, 8) AS INTEGER),
        CAST(substr(:rows, (number - :first) * 60 + 53, 8) AS INTEGER)) AS TEXT), ''),
    started_at = :began + CAST(substr(:rows, (number - :first) * 60 + 37, 8) AS INTEGER),
    finished_at = :now, prune_at = :prune_at,
    accepted_stamp = :stamp, stamp = NULL, leased_by = NULL, leased_until = NULL
WHERE number BETWEEN :first AND :last AND state = 'running' AND attempt = :attempt AND stamp = :stamp
    AND id = CAST(substr(:rows, (number - :first) * 60 + 1, 36) AS TEXT);
