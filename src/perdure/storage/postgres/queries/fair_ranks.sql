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
            (SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
                WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(given.queue, 0)
                ORDER BY {lane_hash} LIMIT 1)
            UNION ALL
            SELECT next.queue, next.task, next.route
            FROM lane CROSS JOIN LATERAL (
                SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
                WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(given.queue, 0)
                    AND hashtextextended(w.task, hashtextextended(w.route, 0))
                        > hashtextextended(lane.task, hashtextextended(lane.route, 0))
                ORDER BY {lane_hash} LIMIT 1) AS next
        )
        SELECT min(head.rank) FROM lane CROSS JOIN LATERAL (
            SELECT w.rank FROM {schema}.waiting AS w
            WHERE ({lane_hash}) = ({hash_of_lane}) AND w.urgency = -1 - given.priority AND {can_be_claimed}
                AND (w.queue, w.task, w.route) = (given.queue, lane.task, lane.route)
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
