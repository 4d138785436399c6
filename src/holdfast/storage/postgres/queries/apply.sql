-- name: succeed
-- The plain success of holders, the most common change of all.
WITH gone AS (
    DELETE FROM {schema}.holds USING unnest(
            %(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[], %(failures)s::integer[], {results},
            %(keeps)s::bigint[], %(begans)s::bigint[]
        ) AS given (id, attempt, stamp, failures, result, keep, began)
    WHERE holds.id = given.id AND holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended
    RETURNING holds.*, given.failures AS failed, given.result, given.keep, given.began
),
freed AS (
    DELETE FROM {schema}.held_keys USING gone WHERE gone.held_key IS NOT NULL AND held_keys.key = gone.held_key
)
INSERT INTO {schema}.outcomes (
    finished_at, prune_at, run_at, rank, started_at, settled, version, attempt, failures, waits, id, state, result,
    progress)
SELECT clock.now, clock.now + coalesce(keep, %(keep)s::bigint), run_at, rank, coalesce(began, started_at), stamp,
    version + 1, attempt, failed, waits, id, 'succeeded', result, progress
FROM gone CROSS JOIN (SELECT {now} AS now) AS clock
RETURNING id::text;

-- name: lock
-- The moving rows of jobs, locked in the order of their ids; gives the ids.
SELECT id::text FROM {schema}.{table} WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: look
-- Jobs as they stand, and the time.
SELECT {record}, {now}
FROM {schema}.jobs j {moving} WHERE j.id = ANY(%(ids)s::uuid[]);

-- name: take_key
-- A key of scope active for a job that gets it back.
INSERT INTO {schema}.held_keys (key, job) VALUES (%(key)s::text, %(id)s::uuid) ON CONFLICT (key) DO NOTHING;

-- name: key_owner
-- Who occupies a key.
SELECT job::text FROM {schema}.held_keys WHERE key = %(key)s::text;

-- name: free_keys
-- Keys that jobs give up.
DELETE FROM {schema}.held_keys USING unnest(%(keys)s::text[], %(ids)s::uuid[]) AS given (key, job)
WHERE held_keys.key = given.key AND held_keys.job = given.job;

-- name: leave
-- Moving rows that are replaced by others.
DELETE FROM {schema}.{table} WHERE id = ANY(%(ids)s::uuid[]);

-- name: wait
-- Jobs that wait from now on.
INSERT INTO {schema}.waiting ({columns})
SELECT {columns} FROM json_populate_recordset(NULL::{schema}.waiting, %(rows)s::json);

-- name: end
-- Jobs that have ended.
INSERT INTO {schema}.outcomes ({columns})
SELECT {columns} FROM json_populate_recordset(NULL::{schema}.outcomes, %(rows)s::json);

-- name: end_held
-- Holds of jobs that were ended from outside: they stand until the holder stops or the lease is over.
UPDATE {schema}.holds SET ended = true WHERE id = ANY(%(ids)s::uuid[]);

-- name: errors
-- What went wrong, on the jobs' own rows.
UPDATE {schema}.jobs SET errors = given.errors
FROM unnest(%(ids)s::uuid[], %(errors)s::text[]) AS given (id, errors) WHERE jobs.id = given.id;

-- name: started
-- Note which handlers began.
UPDATE {schema}.holds SET started_at = given.at
FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[], %(ats)s::bigint[])
    AS given (id, attempt, stamp, at)
WHERE holds.id = given.id AND holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended;

-- name: renew
-- Prolong the leases of holds that stand. One whose row is locked is about to be told of by its holder: it still stands.
UPDATE {schema}.holds SET leased_until = lease + {now}
WHERE id = ANY(ARRAY(
    SELECT holds.id
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[]) AS given (id, attempt, stamp)
        JOIN {schema}.holds ON holds.id = given.id
    WHERE holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended
    ORDER BY holds.id FOR NO KEY UPDATE OF holds SKIP LOCKED))
RETURNING id::text;

-- name: standing
-- Which of these holds stand.
SELECT holds.id::text
FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[]) AS given (id, attempt, stamp)
    JOIN {schema}.holds ON holds.id = given.id
WHERE holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended;

-- name: progress
-- Write the progress that handlers told.
UPDATE {schema}.holds SET progress = given.progress
FROM unnest(%(ids)s::uuid[], %(texts)s::text[]) AS given (id, progress) WHERE holds.id = given.id;

-- name: log
-- Append lines to jobs' logs, in order.
INSERT INTO {schema}.log (job, line)
SELECT job, line FROM unnest(%(ids)s::uuid[], %(lines)s::text[]) WITH ORDINALITY AS given (job, line, place) ORDER BY place;

-- name: cut_log
-- Keep the newest lines of jobs' logs.
DELETE FROM {schema}.log USING unnest(%(ids)s::uuid[]) AS given (job)
WHERE log.job = given.job AND log.number <= (
    SELECT number FROM {schema}.log AS kept WHERE kept.job = given.job
    ORDER BY number DESC LIMIT 1 OFFSET %(lines)s::integer);

-- name: holding
-- What a worker holds under a stamp, in the order of a claim.
SELECT {record}
FROM {schema}.jobs j JOIN {schema}.holds h ON h.id = j.id
    LEFT JOIN {schema}.waiting w ON w.id = j.id LEFT JOIN {schema}.outcomes o ON o.id = j.id
WHERE h.leased_by = %(worker)s::text AND h.stamp = %(stamp)s::bigint AND NOT h.ended
ORDER BY j.priority DESC, rank, j.id;
