-- name: cut_leases
-- Leases that end later than they can: the clock went back.
UPDATE perdure_jobs SET leased_until = min(lease, 4611686018427387904) + :now WHERE number IN (
    SELECT number FROM perdure_jobs WHERE leased_until IS NOT NULL AND limits IS NULL AND leased_until > lease + :now
    UNION ALL
    SELECT number FROM perdure_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL AND leased_until > lease + :now);

-- name: next_lapse
-- The earliest end of a lease.
SELECT min(leased_until) FROM (
    SELECT min(leased_until) AS leased_until FROM perdure_jobs WHERE leased_until IS NOT NULL AND limits IS NULL
    UNION ALL
    SELECT min(leased_until) FROM perdure_jobs INDEXED BY perdure_jobs_limited
    WHERE stamp IS NOT NULL AND limits IS NOT NULL AND leased_until IS NOT NULL);

-- name: lapsed
-- Jobs whose lease has lapsed, the earliest first.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM {whole} WHERE number IN (
        SELECT number FROM (
            SELECT * FROM (
                SELECT number, leased_until, id FROM perdure_jobs
                WHERE leased_until IS NOT NULL AND limits IS NULL AND leased_until <= :now AND lease <= :longest
                ORDER BY leased_until, id LIMIT :limit)
            UNION ALL
            SELECT number, leased_until, id FROM perdure_jobs INDEXED BY perdure_jobs_limited
            WHERE stamp IS NOT NULL AND limits IS NOT NULL AND leased_until <= :now AND lease <= :longest)
        ORDER BY leased_until, id LIMIT :limit)
    ORDER BY leased_until, id);

-- name: expired
-- Waiting jobs that were not started in time.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM {whole}
    WHERE expires_at IS NOT NULL AND (in_lane = 1 OR parked = 1 OR index_state IN ('suspect', 'scheduled', 'blocked'))
        AND expires_at <= ? AND started_at IS NULL
    ORDER BY expires_at, id LIMIT ?);

-- name: past_their_time
-- Ended jobs that have been kept long enough; of each, whether it may only be hidden yet.
SELECT json_group_array(json_array(number, id, too_new)) FROM (
    SELECT number, id, hidden = 0 AND finished_at > :hidden_since AS too_new FROM perdure_jobs AS ended
    WHERE prune_at IS NOT NULL AND prune_at <= :about AND stamp IS NULL AND NOT {needed}
    ORDER BY prune_at, id LIMIT :limit);

-- name: counted_tasks
-- Tasks that keep only so many ended jobs.
SELECT json_group_array(DISTINCT task) FROM perdure_jobs WHERE keep_last IS NOT NULL;

-- name: too_many_counted
-- Ended jobs of these tasks that have as many newer ones as are kept, among those that are counted at all.
SELECT json_group_array(json_array(number, id, finished_at > :hidden_since)) FROM (
    SELECT number, id, finished_at FROM (
        SELECT number, id, keep_last, stamp, finished_at,
            row_number() OVER (PARTITION BY task, state = 'dead' ORDER BY finished_at DESC, id DESC) AS newest
        FROM perdure_jobs INDEXED BY perdure_jobs_counted
        WHERE task IN (SELECT value FROM json_each(:about)) AND keep_last IS NOT NULL AND hidden = 0) AS ended
    WHERE newest > keep_last AND stamp IS NULL AND NOT {needed} LIMIT :limit);

-- name: too_many
-- The same among all ended jobs of the tasks: a job that is kept for another reason counts, too.
SELECT json_group_array(json_array(number, id, finished_at > :hidden_since)) FROM (
    SELECT number, id, finished_at FROM (
        SELECT number, id, keep_last, stamp, finished_at,
            row_number() OVER (PARTITION BY task, state = 'dead' ORDER BY finished_at DESC, id DESC) AS newest
        FROM perdure_jobs
        WHERE hidden = 0 AND finished_at IS NOT NULL AND task IN (SELECT value FROM json_each(:about))) AS ended
    WHERE keep_last IS NOT NULL AND newest > keep_last AND stamp IS NULL AND NOT {needed} LIMIT :limit);

-- name: is_small
-- Whether the whole table may be read.
SELECT count(*) < :small FROM (SELECT 1 FROM perdure_jobs LIMIT :small);

-- name: hide
-- Jobs that are no longer kept, and may not be removed yet.
UPDATE perdure_jobs SET hidden = 1, keep_last = NULL, prune_at = min(finished_at, 4611686018427387904) + :hidden_for, version = min(version, 4611686018427387904) + 1
WHERE number IN (SELECT value FROM json_each(:numbers));

-- name: remove
-- Jobs that are no longer kept.
DELETE FROM perdure_jobs WHERE number IN (SELECT value FROM json_each(?));

-- name: remove_logs
-- The logs of jobs that are no longer kept.
DELETE FROM perdure_log WHERE job IN (SELECT value FROM json_each(:ids));

-- name: remove_keys
-- Keys whose window is over.
DELETE FROM perdure_keys WHERE ends IS NOT NULL AND ends <= ?;

-- name: many_policies
-- Whether there are so many that unused ones are worth a search.
SELECT count(*) > :many FROM (SELECT 1 FROM perdure_policies LIMIT :many + 1);

-- name: remove_policies
-- Policies that no job has.
DELETE FROM perdure_policies WHERE number NOT IN (SELECT policy FROM perdure_bodies);

-- name: remove_edges
-- The edges of jobs that are no longer kept.
DELETE FROM perdure_edges
WHERE parent IN (SELECT value FROM json_each(:ids)) OR child IN (SELECT value FROM json_each(:ids));

-- name: remove_kv
-- The kv entries that belong to them.
DELETE FROM perdure_kv WHERE job IN (SELECT value FROM json_each(:ids));

-- name: remove_unreadable
-- What was set aside of them.
DELETE FROM perdure_unreadable WHERE id IN (SELECT value FROM json_each(:ids));

-- name: remove_starts
-- Starts that do not count any more.
DELETE FROM perdure_starts WHERE ends <= ?;

-- name: remove_accounts
-- Tenants of fair queues who are not ahead of their queue.
DELETE FROM perdure_accounts
WHERE payer <> '' AND rank <= (
    SELECT floor.rank FROM perdure_accounts AS floor
    WHERE floor.queue = perdure_accounts.queue AND floor.priority = perdure_accounts.priority AND floor.payer = '');
