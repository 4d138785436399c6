-- name: cut_leases
-- Leases that reach further than they can: the clock went back.
UPDATE holdfast_jobs SET leased_until = lease + ?1 WHERE rowid IN (
    SELECT rowid FROM holdfast_jobs WHERE leased_until IS NOT NULL AND limits IS NULL AND leased_until > lease + ?1
    UNION ALL
    SELECT rowid FROM holdfast_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL AND leased_until > lease + ?1);

-- name: lapsed
-- Jobs whose lease is over, the longest over first.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM holdfast_jobs WHERE rowid IN (
        SELECT rowid FROM (
            SELECT * FROM (
                SELECT rowid, leased_until, id FROM holdfast_jobs
                WHERE leased_until IS NOT NULL AND limits IS NULL AND leased_until <= ?1 AND lease <= ?2
                ORDER BY leased_until, id LIMIT ?3)
            UNION ALL
            SELECT rowid, leased_until, id FROM holdfast_jobs INDEXED BY holdfast_jobs_limited
            WHERE stamp IS NOT NULL AND limits IS NOT NULL AND leased_until <= ?1 AND lease <= ?2)
        ORDER BY leased_until, id LIMIT ?3)
    ORDER BY leased_until, id);

-- name: expired
-- Waiting jobs that were not started in time.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM holdfast_jobs
    WHERE expires_at IS NOT NULL AND expires_at <= ? AND state IN ('blocked', 'scheduled', 'ready')
        AND started_at IS NULL
    ORDER BY expires_at, id LIMIT ?);

-- name: past_their_time
-- Ended jobs that have been kept long enough.
SELECT json_group_array(json_array(number, id)) FROM (
    SELECT rowid AS number, id FROM holdfast_jobs AS ended
    WHERE prune_at IS NOT NULL AND prune_at <= ? AND stamp IS NULL AND NOT {needed}
    ORDER BY prune_at, id LIMIT ?);

-- name: counted_tasks
-- Tasks that keep only so many ended jobs.
SELECT json_group_array(DISTINCT task) FROM holdfast_jobs WHERE keep_last IS NOT NULL;

-- name: too_many_counted
-- Ended jobs of a task that have as many newer ones as are kept, among those that are counted at all.
SELECT json_group_array(json_array(number, id)) FROM (
    SELECT number, id FROM (
        SELECT rowid AS number, id, keep_last, stamp,
            row_number() OVER (PARTITION BY state = 'dead' ORDER BY finished_at DESC, id DESC) AS place
        FROM holdfast_jobs INDEXED BY holdfast_jobs_counted
        WHERE task = ? AND keep_last IS NOT NULL AND hidden = 0) AS ended
    WHERE place > keep_last AND stamp IS NULL AND NOT {needed} LIMIT ?);

-- name: too_many
-- The same among all ended jobs of the task: a job that is kept for another reason takes a place too.
SELECT json_group_array(json_array(number, id)) FROM (
    SELECT number, id FROM (
        SELECT rowid AS number, id, keep_last, stamp,
            row_number() OVER (PARTITION BY state = 'dead' ORDER BY finished_at DESC, id DESC) AS place
        FROM holdfast_jobs WHERE task = ? AND finished_at IS NOT NULL AND hidden = 0) AS ended
    WHERE keep_last IS NOT NULL AND place > keep_last AND stamp IS NULL AND NOT {needed} LIMIT ?);

-- name: is_small
-- Whether the whole table may be looked through.
SELECT count(*) < ?1 FROM (SELECT 1 FROM holdfast_jobs LIMIT ?1);

-- name: remove
-- Jobs that are no longer kept.
DELETE FROM holdfast_jobs WHERE rowid IN (SELECT value FROM json_each(?));

-- name: remove_logs
-- The logs of jobs that are no longer kept.
DELETE FROM holdfast_log WHERE job IN (SELECT value FROM json_each(?));

-- name: remove_keys
-- Keys whose window is over.
DELETE FROM holdfast_keys WHERE ends IS NOT NULL AND ends <= ?;

-- name: many_policies
-- Whether there are so many that those which nobody has any more are worth looking for.
SELECT count(*) > ?1 FROM (SELECT 1 FROM holdfast_policies LIMIT ?1 + 1);

-- name: remove_policies
-- What no job has in common any more.
DELETE FROM holdfast_policies WHERE number NOT IN (SELECT policy FROM holdfast_jobs);

-- name: remove_edges
-- The edges of jobs that are no longer kept.
DELETE FROM holdfast_edges
WHERE parent IN (SELECT value FROM json_each(?1)) OR child IN (SELECT value FROM json_each(?1));

-- name: remove_shelved
-- What belonged to them on the shelf.
DELETE FROM holdfast_shelf WHERE job IN (SELECT value FROM json_each(?));

-- name: remove_starts
-- Starts that count no more.
DELETE FROM holdfast_starts WHERE ends <= ?;

-- name: remove_accounts
-- Tenants of fair queues who are not ahead of their queue.
DELETE FROM holdfast_accounts
WHERE payer <> '' AND rank <= (
    SELECT floor.rank FROM holdfast_accounts AS floor
    WHERE floor.queue = holdfast_accounts.queue AND floor.priority = holdfast_accounts.priority AND floor.payer = '');
