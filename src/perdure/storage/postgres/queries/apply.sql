-- name: standing_places
-- The rows of valid holds, looked up one by one, whatever the statistics say.
SELECT hold.place
FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[]) AS given (id, attempt, stamp)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}.holds
        WHERE holds.id = given.id AND holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended
        OFFSET 0) AS hold

-- name: succeed
-- Report ordinary successes, the most common change of all; returns the ids of those that were accepted, whether they are
-- followed, and the queues of those under limits.
WITH {succeeding} SELECT id::text, followed, limited FROM ended;

-- name: succeeding
-- Replace valid holds by outcomes.
ended AS (
    DELETE FROM {schema}.holds WHERE ctid = ANY(ARRAY({standing_places}))
    RETURNING id, run_at, rank, started_at, stamp, version, attempt, waits, held_key, progress, followed, limited, slot
),
noted AS MATERIALIZED (SELECT id, stamp, followed, limited, slot FROM ended WHERE followed OR limited IS NOT NULL),
left_open AS (INSERT INTO {schema}.unresolved (parent) SELECT id FROM noted WHERE followed),
released AS (
    INSERT INTO {schema}.limit_notices (key, job, stamp)
    SELECT DISTINCT slot, CASE WHEN slot IS NULL THEN id END, CASE WHEN slot IS NULL THEN stamp END
    FROM noted WHERE limited IS NOT NULL
    RETURNING 1
),
ended_keys AS (
    DELETE FROM {schema}.held_keys WHERE key = ANY(ARRAY(SELECT held_key FROM ended WHERE held_key IS NOT NULL))
),
clock AS MATERIALIZED (SELECT {now} AS now),
succeeded AS (
    INSERT INTO {schema}.outcomes (
        finished_at, prune_at, run_at, rank, started_at, accepted_stamp, version, attempt, failures, waits, id, state, result,
        progress, followed)
    SELECT (SELECT now FROM clock), (SELECT now FROM clock) + coalesce(said.keep, %(keep)s::bigint), ended.run_at,
        ended.rank, coalesce(said.began, ended.started_at), ended.stamp, ended.version + 1, ended.attempt, said.failures,
        ended.waits, ended.id, 'succeeded', said.result, ended.progress, ended.followed
    FROM ended
        JOIN unnest(
            %(ids)s::uuid[], %(failures)s::integer[], string_to_array(%(results)s::text, chr(30), chr(31)),
            %(keeps)s::bigint[], %(begans)s::bigint[]) AS said (id, failures, result, keep, began) ON said.id = ended.id
    RETURNING id
)

-- name: give_way
-- How long this transaction waits for a lock from here on; '0' is for as long as it takes.
SELECT set_config('lock_timeout', %(within)s, true);

-- name: lock
-- Lock the state rows of jobs in the order of their ids; returns the ids.
SELECT id::text FROM {schema}.{table} WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: look
-- Jobs with their state, and the time.
SELECT {record}, {now}
FROM {schema}.jobs j {moving_by_id} WHERE j.id = ANY(%(ids)s::uuid[]);

-- name: take_key
-- A key of scope active for a job that gets it back.
INSERT INTO {schema}.held_keys (key, job) VALUES (%(key)s::text, %(id)s::uuid) ON CONFLICT (key) DO NOTHING;

-- name: free_keys
-- Keys that jobs give up.
DELETE FROM {schema}.held_keys WHERE key = ANY(%(keys)s::text[]) AND job = ANY(%(ids)s::uuid[]);

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

-- name: go_on_with
-- The job that goes on with a chain is the owner of a key that the next one would share.
UPDATE {schema}.outcomes SET next_id = %(next_id)s::uuid WHERE id = %(id)s::uuid;

-- name: end_held
-- Holds of jobs that were ended from outside: they stay until the holder stops or the lease is over.
UPDATE {schema}.holds SET ended = true WHERE id = ANY(%(ids)s::uuid[]);

-- name: unresolved
-- Jobs that are followed and have ended: their edges must be resolved.
INSERT INTO {schema}.unresolved (parent) SELECT id FROM unnest(%(ids)s::uuid[]) AS given (id);

-- name: parked
-- Lanes in which jobs under limits became ready.
INSERT INTO {schema}.limit_notices (gate, queue, task, route)
SELECT gate, queue, task, route
FROM json_to_recordset(%(lanes)s::json) AS given (gate uuid, queue text, task text, route text);

-- name: released
-- Released holds of limited jobs: those of one key by the key, the others by job and stamp.
INSERT INTO {schema}.limit_notices (key, job, stamp)
SELECT key, NULL, NULL FROM unnest(%(keys)s::uuid[]) AS given (key)
UNION ALL
SELECT NULL, id, stamp FROM unnest(%(ids)s::uuid[], %(stamps)s::bigint[]) AS given (id, stamp);

-- name: errors
-- What went wrong, on the jobs' own rows.
UPDATE {schema}.jobs SET errors = (%(errors)s::text[])[array_position(%(ids)s::uuid[], id)]
WHERE id = ANY(%(ids)s::uuid[]);

-- name: started
-- Note which handlers began.
UPDATE {schema}.holds SET started_at = (
    SELECT given.at FROM unnest(%(ids)s::uuid[], %(stamps)s::bigint[], %(ats)s::bigint[]) AS given (id, stamp, at)
    WHERE given.id = holds.id AND given.stamp = holds.stamp)
WHERE ctid = ANY(ARRAY({standing_places}));

-- name: lengthen
-- A lease that is asked for becomes the job's own if it is longer, for valid holds.
UPDATE {schema}.jobs SET lease = %(lease)s::bigint
WHERE lease < %(lease)s::bigint AND id = ANY(ARRAY(
    SELECT holds.id
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[]) AS given (id, attempt, stamp)
        JOIN {schema}.holds ON holds.id = given.id AND holds.attempt = given.attempt AND holds.stamp = given.stamp
            AND NOT holds.ended));

-- name: renew
-- Prolong the leases of valid holds, by what is asked for (NULL: by their own); a longer one becomes their own. One whose
-- row is locked is about to be ended by its holder: it is still valid.
UPDATE {schema}.holds
SET leased_until = least(coalesce(%(lease)s::bigint, lease), 4611686018427387904) + {now}, lease = greatest(lease, %(lease)s::bigint)
WHERE id = ANY(ARRAY(
    SELECT hold.id
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(stamps)s::bigint[]) AS given (id, attempt, stamp)
        CROSS JOIN LATERAL (
            SELECT holds.id FROM {schema}.holds
            WHERE holds.id = given.id AND holds.attempt = given.attempt AND holds.stamp = given.stamp AND NOT holds.ended
            FOR NO KEY UPDATE SKIP LOCKED) AS hold))
RETURNING id::text;

-- name: standing
-- Which of these holds are valid.
SELECT id::text FROM {schema}.holds WHERE ctid = ANY(ARRAY({standing_places}));

-- name: progress
-- Write the progress that handlers reported.
UPDATE {schema}.holds SET progress = (%(texts)s::text[])[array_position(%(ids)s::uuid[], id)]
WHERE id = ANY(%(ids)s::uuid[]);

-- name: log
-- Append lines to jobs' logs, in order.
INSERT INTO {schema}.log (job, line)
SELECT job, line FROM unnest(%(ids)s::uuid[], %(lines)s::text[]) WITH ORDINALITY AS given (job, line, place) ORDER BY place;

-- name: cut_log
-- Keep the newest lines of jobs' logs.
DELETE FROM {schema}.log WHERE job = ANY(%(ids)s::uuid[]) AND number <= (
    SELECT kept.number FROM {schema}.log AS kept WHERE kept.job = log.job
    ORDER BY kept.number DESC LIMIT 1 OFFSET %(lines)s::integer);

-- name: holding
-- What a worker holds under a stamp, in the order of a claim.
SELECT {record}
FROM (
    SELECT id FROM {schema}.holds WHERE leased_by = %(worker)s::text AND stamp = %(stamp)s::bigint AND NOT ended
) AS held CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = held.id OFFSET 0) AS j {moving_by_id}
ORDER BY j.priority DESC, rank, j.id;
