-- name: accounts
-- The accounts of payers and floors.
SELECT account.queue, account.priority, account.tenant, account.rank
FROM unnest(%(queues)s::text[], %(priorities)s::integer[], %(tenants)s::text[]) AS given (queue, priority, tenant)
    CROSS JOIN LATERAL (
        SELECT queue, priority, tenant, rank FROM {schema}.fair_accounts
        WHERE fair_accounts.queue = given.queue AND fair_accounts.priority = given.priority
            AND fair_accounts.tenant = given.tenant
        OFFSET 0) AS account;

-- name: heads
-- The smallest rank of the ready jobs of a queue and priority: the best of each lane, found by a loose scan of the claim
-- index; and the time.
SELECT (
        WITH RECURSIVE lane AS (
            (SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.queue = given.queue AND w.state = 'ready' AND NOT w.parked AND NOT w.suspect
                ORDER BY w.task, w.route LIMIT 1)
            UNION ALL
            SELECT next.task, next.route
            FROM lane CROSS JOIN LATERAL (
                SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.queue = given.queue AND w.state = 'ready' AND NOT w.parked AND NOT w.suspect
                    AND (w.task, w.route) > (lane.task, lane.route)
                ORDER BY w.task, w.route LIMIT 1) AS next
        )
        SELECT min(head.rank) FROM lane CROSS JOIN LATERAL (
            SELECT w.rank FROM {schema}.waiting AS w
            WHERE w.queue = given.queue AND w.task = lane.task AND w.route = lane.route
                AND w.urgency = -1 - given.priority AND w.state = 'ready' AND NOT w.parked AND NOT w.suspect
            ORDER BY w.rank, w.id LIMIT 1) AS head
    ), {now}
FROM unnest(%(queues)s::text[], %(priorities)s::integer[]) WITH ORDINALITY AS given (queue, priority, place)
ORDER BY given.place;

-- name: charge
-- Accounts as they stand now.
INSERT INTO {schema}.fair_accounts (queue, priority, tenant, rank)
SELECT queue, priority, tenant, rank
FROM unnest(%(queues)s::text[], %(priorities)s::integer[], %(tenants)s::text[], %(ranks)s::bigint[])
    AS given (queue, priority, tenant, rank)
ON CONFLICT (queue, priority, tenant) DO UPDATE SET rank = excluded.rank;

-- name: raise
-- Accounts hold at least so much.
INSERT INTO {schema}.fair_accounts (queue, priority, tenant, rank)
SELECT queue, priority, tenant, rank
FROM unnest(%(queues)s::text[], %(priorities)s::integer[], %(tenants)s::text[], %(ranks)s::bigint[])
    AS given (queue, priority, tenant, rank)
ON CONFLICT (queue, priority, tenant) DO UPDATE SET rank = greatest(fair_accounts.rank, excluded.rank);

-- name: forget
-- Accounts that lie below their floor say nothing more.
DELETE FROM {schema}.fair_accounts AS account USING {schema}.fair_accounts AS floor
WHERE floor.queue = account.queue AND floor.priority = account.priority AND floor.tenant = '' AND account.tenant <> ''
    AND account.rank <= floor.rank;
