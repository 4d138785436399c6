-- name: insert
-- Jobs in the caller's transaction, one row each, in the order of the list.
INSERT INTO perdure_outbox (enqueued_at, min_version, id, queue, job)
SELECT json_extract(input.value, '$.enqueued_at'), json_extract(input.value, '$.min_version'),
    json_extract(input.value, '$.id'), json_extract(input.value, '$.queue'), json_extract(input.value, '$.job')
FROM json_each(?) AS input ORDER BY json_extract(input.value, '$.number');

-- name: batch
-- The first rows that wait, of all queues but some, up to a number of rows and of bytes. A job comes as bytes: one that is not
-- UTF-8 is read, and set aside, like any other that holds no job.
SELECT number, enqueued_at, CAST(job AS BLOB) FROM (
    SELECT number, enqueued_at, job, sum(length(job)) OVER (ORDER BY number) - length(job) AS before FROM (
        SELECT number, enqueued_at, job FROM perdure_outbox
        WHERE set_aside_at IS NULL AND min_version <= :version AND queue NOT IN (SELECT value FROM json_each(:full))
        ORDER BY number LIMIT :rows))
WHERE before < :bytes ORDER BY number;

-- name: moved
-- They are stored.
DELETE FROM perdure_outbox WHERE number IN (SELECT value FROM json_each(?));

-- name: set_aside
-- They cannot be moved.
UPDATE perdure_outbox SET set_aside_at = :now, error = input.error
FROM (SELECT json_extract(value, '$[0]') AS number, json_extract(value, '$[1]') AS error FROM json_each(:rows)) AS input
WHERE perdure_outbox.number = input.number;

-- name: bring_back
-- Those that were set aside wait again.
UPDATE perdure_outbox SET set_aside_at = NULL, error = NULL WHERE set_aside_at IS NOT NULL;

-- name: counts
-- How many wait, since when the oldest does, and how many were set aside.
SELECT count(*) - count(set_aside_at), min(CASE WHEN set_aside_at IS NULL THEN enqueued_at END), count(set_aside_at)
FROM perdure_outbox;

-- name: aside
-- Rows that were set aside.
SELECT number, CAST(id AS BLOB), CAST(error AS BLOB), set_aside_at
FROM perdure_outbox WHERE set_aside_at IS NOT NULL ORDER BY number LIMIT ?;
