-- name: lost
-- Blocked jobs among these that have lost edges (`rules.records.edges_are_lost`), but for those that are on the list anyway. One that
-- names no other and waits for none is among them.
SELECT w.id::text FROM {schema}.waiting AS w
    JOIN {schema}.jobs AS j ON j.id = w.id AND (j.after IS NOT NULL OR coalesce(w.waits, 0) = 0)
    CROSS JOIN LATERAL (SELECT count(*) AS open FROM {schema}.edges AS e WHERE e.child = w.id AND e.open) AS edge
WHERE w.id = ANY(%(ids)s::uuid[]) AND w.state = 'blocked' AND (edge.open = 0 OR edge.open <> coalesce(w.waits, 0))
    AND w.id NOT IN (SELECT child FROM {schema}.unresolved WHERE child IS NOT NULL);

-- name: unaware
-- Blocked jobs among these with parents that are to be looked at, and are on no list: not on record, not marked as followed, or
-- ended in a way that does not leave the job waiting.
SELECT DISTINCT e.child::text FROM {schema}.edges AS e
    JOIN {schema}.waiting AS w ON w.id = e.child AND w.state = 'blocked'
    LEFT JOIN {schema}.waiting AS waits ON waits.id = e.parent
    LEFT JOIN {schema}.holds AS runs ON runs.id = e.parent
    LEFT JOIN {schema}.outcomes AS ended ON ended.id = e.parent
WHERE e.child = ANY(%(ids)s::uuid[]) AND e.open
    AND (NOT coalesce(waits.followed, runs.followed, ended.followed, false)
        OR ended.state <> 'dead' OR ended.hidden OR (ended.id IS NOT NULL AND (e.finished OR ended.next_id IS NOT NULL)))
    AND e.child NOT IN (SELECT child FROM {schema}.unresolved WHERE child IS NOT NULL)
    AND e.parent NOT IN (SELECT parent FROM {schema}.unresolved WHERE parent IS NOT NULL);

-- name: lock
-- Jobs that wait, locked in the order of their ids: only who holds the lock of a child changes its edges.
SELECT id FROM {schema}.waiting WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;

-- name: make
-- Edges; those that were closed are open again.
INSERT INTO {schema}.edges (parent, child, finished)
SELECT parent, child, finished
FROM unnest(%(parents)s::uuid[], %(children)s::uuid[], %(finished)s::boolean[]) AS given (parent, child, finished)
ON CONFLICT (parent, child) DO UPDATE SET open = true, finished = excluded.finished;

-- name: count
-- These jobs wait for as many as have an open edge to them.
UPDATE {schema}.waiting SET waits = (SELECT count(*) FROM {schema}.edges AS e WHERE e.child = waiting.id AND e.open)
WHERE id = ANY(%(ids)s::uuid[]) AND state = 'blocked';

-- name: note
-- The parents of these jobs are to be looked at.
INSERT INTO {schema}.unresolved (child) SELECT unnest(%(ids)s::uuid[]);

-- name: note_unranked
-- These jobs wait for nobody: they are to be given their place.
INSERT INTO {schema}.unresolved (child, unranked) SELECT unnest(%(ids)s::uuid[]), true;
