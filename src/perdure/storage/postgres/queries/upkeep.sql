-- name: lapsed
-- Jobs whose lease is over, the longest over first. Leases that reach further than they can are cut: the clock went back.
WITH cut AS (
    UPDATE {schema}.holds SET leased_until = {sane_lease} + {now}
    WHERE id = ANY(ARRAY(
        SELECT id FROM {schema}.holds WHERE leased_until > {sane_lease} + {now} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
)
SELECT {record}
FROM (
    SELECT id, leased_until FROM {schema}.holds WHERE leased_until <= {now} AND lease <= %(longest)s::numeric
    ORDER BY leased_until, id LIMIT %(limit)s::integer
) AS late CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = late.id OFFSET 0) AS j {moving_by_id}
ORDER BY late.leased_until, late.id;

-- name: sane_lease
-- The length of a lease: an instant of our time can be added to it, whatever the row says.
least(lease, 4611686018427387904)

-- name: next_lapse
-- How long it takes until a lease is over.
SELECT min(greatest(leased_until, -4611686018427387904)) - {now} FROM {schema}.holds;

-- name: expired
-- Waiting jobs that were not started in time.
SELECT {record}
FROM (
    SELECT id, expires_at FROM {schema}.waiting WHERE expires_at <= {now} AND started_at IS NULL
    ORDER BY expires_at, id LIMIT %(limit)s::integer
) AS late CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = late.id OFFSET 0) AS j {moving_by_id}
ORDER BY late.expires_at, late.id;

-- name: brief
-- Ended jobs that were to be kept for less than a day, and have been.
SELECT o.id::text FROM {schema}.outcomes AS o
WHERE o.prune_at <= {now} AND o.prune_at < o.finished_at + 86400000000 AND NOT {needed}
ORDER BY o.prune_at, o.id LIMIT %(limit)s::integer;

-- name: long_kept
-- Ended jobs that were to be kept for longer and are overdue by so much: their piece of the history cannot be dropped.
SELECT o.id::text FROM {schema}.outcomes AS o
WHERE o.prune_at <= {now} - %(leeway)s::bigint AND o.prune_at >= o.finished_at + 86400000000 AND NOT {needed}
LIMIT %(limit)s::integer;

-- name: next_long_kept
-- When the next of the long kept jobs is to be removed.
SELECT min(prune_at), {now} FROM {schema}.outcomes WHERE prune_at >= finished_at + 86400000000;

-- name: counted_tasks
-- Tasks that keep only so many ended jobs.
SELECT DISTINCT task FROM {schema}.outcomes WHERE keep_last IS NOT NULL;

-- name: too_many
-- Ended jobs of these tasks that have as many newer ones as are kept. A job that is kept for another reason takes a place too.
SELECT o.id::text FROM (
    SELECT o.id, o.keep_last,
        row_number() OVER (PARTITION BY o.task, o.state = 'dead' ORDER BY o.finished_at DESC, o.id DESC) AS place
    FROM ({among}) AS o
) AS o
WHERE o.keep_last IS NOT NULL AND o.place > o.keep_last AND NOT {needed}
LIMIT %(limit)s::integer;

-- name: among_all
-- All ended jobs of some tasks.
SELECT o.id, o.keep_last, o.state, o.finished_at, j.task
FROM {schema}.outcomes AS o JOIN {schema}.jobs AS j ON j.id = o.id
WHERE j.task = ANY(%(tasks)s::text[]) AND NOT o.hidden

-- name: among_counted
-- Those of them that are counted.
SELECT o.id, o.keep_last, o.state, o.finished_at, o.task FROM {schema}.outcomes AS o
WHERE o.task = ANY(%(tasks)s::text[]) AND o.keep_last IS NOT NULL AND NOT o.hidden

-- name: is_small
-- Whether the history of a task may be looked through.
SELECT count(*) < %(small)s::integer FROM (SELECT 1 FROM {schema}.outcomes LIMIT %(small)s::integer) AS part;

-- name: lock_ended
-- Ended jobs that may be removed, locked; one that somebody is at is left for the next time.
SELECT o.id::text FROM {schema}.outcomes AS o
WHERE o.id = ANY(%(ids)s::uuid[]) AND NOT {needed}
ORDER BY o.id FOR UPDATE SKIP LOCKED;

-- name: needed
-- Whether somebody holds an ended job, waits for it, or waited for it and has not ended.
(EXISTS (SELECT 1 FROM {schema}.holds WHERE holds.id = o.id) OR EXISTS (
    SELECT 1 FROM {schema}.edges WHERE edges.parent = o.id AND (
        edges.open OR EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = edges.child)
        OR EXISTS (SELECT 1 FROM {schema}.holds WHERE holds.id = edges.child AND NOT holds.ended))))

-- name: still_over
-- Those of them that nobody has come to follow, to retry or to hide before they were locked; of each, whether it may only be
-- hidden yet.
SELECT o.id::text, (NOT o.hidden AND o.finished_at > {now} - %(hidden_for)s::bigint) IS TRUE
FROM {schema}.outcomes AS o
WHERE o.id = ANY(%(ids)s::uuid[]) AND (o.prune_at <= {now} OR o.keep_last IS NOT NULL) AND NOT {needed};

-- name: hide
-- Jobs that are no longer kept, and may not be removed yet.
UPDATE {schema}.outcomes
SET hidden = true, keep_last = NULL, task = NULL, prune_at = finished_at + %(hidden_for)s::bigint, version = version + 1
WHERE id = ANY(%(ids)s::uuid[]);

-- name: remove_outcomes
-- Outcomes that are no longer kept.
DELETE FROM {schema}.outcomes WHERE id = ANY(%(ids)s::uuid[]);

-- name: remove_jobs
-- Jobs that are no longer kept.
DELETE FROM {schema}.jobs WHERE id = ANY(%(ids)s::uuid[]);

-- name: remove_logs
-- The logs of jobs that are no longer kept.
DELETE FROM {schema}.log WHERE job = ANY(%(ids)s::uuid[]);

-- name: remove_edges
-- The edges from jobs that are no longer kept.
DELETE FROM {schema}.edges WHERE parent = ANY(%(ids)s::uuid[]);

-- name: remove_edges_to
-- The edges to jobs that are no longer kept.
DELETE FROM {schema}.edges WHERE child = ANY(%(ids)s::uuid[]);

-- name: remove_texts
-- The kv entries of jobs that are no longer kept.
DELETE FROM {schema}.kv WHERE job = ANY(%(ids)s::uuid[]);

-- name: remove_unreadable
-- What was kept of jobs that could not be read and are no longer kept.
DELETE FROM {schema}.unreadable WHERE id = ANY((%(ids)s::uuid[])::text[]);

-- name: forget_unreadable
-- What was kept of jobs whose pieces were dropped.
DELETE FROM {schema}.unreadable AS kept WHERE kept.place = 'jobs' AND NOT EXISTS (
    SELECT 1 FROM {schema}.jobs WHERE jobs.id = CASE WHEN kept.place = 'jobs' THEN kept.id::uuid END);

-- name: remove_keys
-- Keys whose window has been over for a while. Not at once: who is about to take one again must meet it.
DELETE FROM {schema}.kept_keys WHERE ends <= {now} - 60000000;

-- name: now
-- The store's clock.
SELECT {now};

-- name: make_partition
-- Make the pieces of a day to come; gives whether they are there.
SELECT {schema}.make_partition(%(ahead)s::integer);

-- name: drop_partition
-- Drop the oldest pieces that are no longer needed; gives the number of jobs in them, NULL when there are none. What ended
-- within the time in which jobs are only hidden was to be kept until within it, or longer: it keeps its piece.
SELECT {schema}.drop_partition({now} - %(hidden_for)s::bigint);
