-- name: export
-- Whole jobs behind a position, the oldest first.
SELECT {record}
FROM (
    SELECT * FROM {schema}.jobs
    WHERE created_at >= %(created_at)s::bigint
        AND (created_at > %(created_at)s::bigint OR id > %(id)s::uuid)
    ORDER BY created_at, id LIMIT %(limit)s::integer
) AS j {moving_by_id}
ORDER BY j.created_at, j.id;

-- name: lines
-- The log lines of jobs, oldest first.
SELECT job::text, line FROM {schema}.log WHERE job = ANY(%(ids)s::uuid[]) ORDER BY job, number;

-- name: parents
-- The jobs that jobs still wait for, by id.
SELECT child::text, parent::text FROM {schema}.edges WHERE child = ANY(%(ids)s::uuid[]) AND open ORDER BY child, parent;

-- name: kept_for
-- The jobs that waited for jobs and have not ended, by id.
SELECT parent::text, child::text FROM {schema}.edges
WHERE parent = ANY(%(ids)s::uuid[]) AND NOT open AND (
    EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = edges.child)
    OR EXISTS (SELECT 1 FROM {schema}.holds WHERE holds.id = edges.child AND NOT holds.ended))
ORDER BY parent, child;

-- name: close_edges
-- The edges of jobs that are replaced.
UPDATE {schema}.edges SET open = false WHERE child = ANY(%(ids)s::uuid[]) AND open;

-- name: insert_edges
-- The edges of jobs as they are.
INSERT INTO {schema}.edges (parent, child, finished)
SELECT parent, child, finished
FROM unnest(%(parents)s::uuid[], %(children)s::uuid[], %(finished)s::boolean[]) AS given (parent, child, finished)
ON CONFLICT (parent, child) DO UPDATE SET open = true, finished = excluded.finished;

-- name: keep_edges
-- Closed edges, unless they are there.
INSERT INTO {schema}.edges (parent, child, open)
SELECT parent, child, false FROM unnest(%(parents)s::uuid[], %(children)s::uuid[]) AS given (parent, child)
ON CONFLICT (parent, child) DO NOTHING;

-- name: give_up
-- Holds of limited jobs that are replaced, but for those that come again.
INSERT INTO {schema}.limit_notices (key, job, stamp)
SELECT held.slot, CASE WHEN held.slot IS NULL THEN held.id END, CASE WHEN held.slot IS NULL THEN held.stamp END
FROM {schema}.holds AS held
WHERE held.id = ANY(%(ids)s::uuid[]) AND held.limited IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM unnest(%(held)s::uuid[], %(stamps)s::bigint[]) AS again (id, stamp)
    WHERE again.id = held.id AND again.stamp = held.stamp);

-- name: use
-- The keys that held jobs use, unless they do already.
INSERT INTO {schema}.limit_slots (key, job, stamp)
SELECT given.key, given.job, given.stamp
FROM unnest(%(keys)s::uuid[], %(jobs)s::uuid[], %(stamps)s::bigint[]) AS given (key, job, stamp)
WHERE NOT EXISTS (
    SELECT 1 FROM {schema}.limit_slots AS slot
    WHERE slot.job = given.job AND slot.key = given.key AND slot.stamp = given.stamp);

-- name: owners
-- Who occupies these keys of scope waiting and active.
SELECT key, job::text FROM {schema}.held_keys WHERE key = ANY(%(keys)s::text[]);

-- name: free_keys
-- The keys that jobs occupy which are replaced.
DELETE FROM {schema}.held_keys WHERE key = ANY(ARRAY(
    SELECT held_key FROM {schema}.waiting WHERE id = ANY(%(ids)s::uuid[]) AND held_key IS NOT NULL
    UNION SELECT held_key FROM {schema}.holds WHERE id = ANY(%(ids)s::uuid[]) AND held_key IS NOT NULL
    UNION SELECT held_key FROM {schema}.outcomes WHERE id = ANY(%(ids)s::uuid[]) AND held_key IS NOT NULL));

-- name: remove
-- Rows of jobs that are replaced.
DELETE FROM {schema}.{table} WHERE {column} = ANY(%(ids)s::uuid[]);

-- name: insert
-- Rows of jobs as they are.
INSERT INTO {schema}.{table} ({columns})
SELECT {columns} FROM json_populate_recordset(NULL::{schema}.{table}, %(rows)s::json);

-- name: take_keys
-- The keys that they occupy.
INSERT INTO {schema}.held_keys (key, job)
SELECT key, job FROM unnest(%(keys)s::text[], %(ids)s::uuid[]) AS given (key, job) ORDER BY key;

-- name: insert_lines
-- Log lines, in order.
INSERT INTO {schema}.log (job, line)
SELECT job, line FROM unnest(%(ids)s::uuid[], %(lines)s::text[]) WITH ORDINALITY AS given (job, line, place) ORDER BY place;

-- name: keys
-- Kept keys behind a key, each as it was taken last.
SELECT DISTINCT ON (key) key, job::text, ends FROM {schema}.kept_keys
WHERE %(cursor)s::text IS NULL OR key > %(cursor)s::text
ORDER BY key, starts DESC LIMIT %(limit)s::integer;

-- name: remove_keys
-- Kept keys that are replaced.
DELETE FROM {schema}.kept_keys WHERE key = ANY(%(keys)s::text[]);

-- name: insert_keys
-- Kept keys as they are. When one is over, its next row starts where it ended.
INSERT INTO {schema}.kept_keys (key, starts, ends, job)
SELECT key, 0, ends, job FROM unnest(%(keys)s::text[], %(ends)s::bigint[], %(ids)s::uuid[]) AS given (key, ends, job)
ORDER BY key;
