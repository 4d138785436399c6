-- name: accounts
-- What is known of these payers and floors.
WITH input (queue, priority, payer) AS (VALUES {values})
SELECT account.queue, account.priority, account.payer, account.rank FROM input
CROSS JOIN perdure_accounts AS account
    ON account.queue = input.queue AND account.priority = input.priority AND account.payer = input.payer;

-- name: charge
-- Accounts as they are now.
INSERT OR REPLACE INTO perdure_accounts (queue, priority, payer, rank) VALUES {values};

-- name: raise
-- Accounts hold at least so much.
INSERT INTO perdure_accounts (queue, priority, payer, rank) VALUES {values}
ON CONFLICT DO UPDATE SET rank = max(rank, excluded.rank);

-- name: head
-- The smallest rank of the jobs in a queue's lanes that have a priority (a loose scan of the claim index, as for a claim).
WITH RECURSIVE lane (head) AS (
    SELECT (
        SELECT number FROM perdure_jobs WHERE in_lane = 1 AND queue = :queue
        ORDER BY task, routing_key LIMIT 1)
    UNION ALL
    SELECT coalesce(
        CASE WHEN last.routing_key IS NULL THEN (
            SELECT number FROM perdure_jobs
            WHERE in_lane = 1
                AND queue = :queue AND task = last.task AND routing_key >= ''
            ORDER BY routing_key LIMIT 1)
        ELSE (
            SELECT number FROM perdure_jobs
            WHERE in_lane = 1
                AND queue = :queue AND task = last.task AND routing_key > last.routing_key
            ORDER BY routing_key LIMIT 1)
        END,
        (SELECT number FROM perdure_jobs
            WHERE in_lane = 1 AND queue = :queue AND task > last.task
            ORDER BY task, routing_key LIMIT 1))
    FROM lane JOIN perdure_jobs AS last ON last.number = lane.head
)
SELECT coalesce(min((
    SELECT rank FROM perdure_jobs AS job
    WHERE job.in_lane = 1
        AND job.queue = :queue AND job.task = last.task AND job.routing_key IS last.routing_key AND job.priority = :priority
    ORDER BY rank LIMIT 1)), 0)
FROM lane JOIN perdure_jobs AS last ON last.number = lane.head;
