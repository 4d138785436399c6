-- name: add
-- Edges from the parents that new jobs name.
INSERT INTO perdure_edges (parent, child, run_when, open)
SELECT DISTINCT parent.value, job.id, body.run_when, 1
FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number) CROSS JOIN json_each(body.after) AS parent
WHERE job.id IN (SELECT value FROM json_each(?))
ON CONFLICT DO NOTHING;

-- name: put
-- Open edges; those that were closed are open again.
WITH input (parent, child, run_when) AS (VALUES {values})
INSERT INTO perdure_edges (parent, child, run_when, open) SELECT parent, child, run_when, 1 FROM input WHERE true
ON CONFLICT DO UPDATE SET open = 1, run_when = excluded.run_when;

-- name: keep
-- Closed edges; stored ones stay as they are. When their children run does not matter any more.
WITH input (parent, child) AS (VALUES {values})
INSERT INTO perdure_edges (parent, child, run_when, open) SELECT parent, child, '', 0 FROM input WHERE true
ON CONFLICT DO NOTHING;

-- name: close
-- Single edges that block their child no more.
WITH input (parent, child) AS (VALUES {values})
UPDATE perdure_edges SET open = 0 FROM input
WHERE perdure_edges.parent = input.parent AND perdure_edges.child = input.child AND open = 1;

-- name: close_all
-- Every edge that leads to these jobs.
UPDATE perdure_edges SET open = 0 WHERE child IN (SELECT value FROM json_each(?)) AND open = 1;

-- name: mark
-- These jobs are followed: once they have ended, their edges are resolved.
UPDATE perdure_jobs SET followed = 1, edges_pending = 1 WHERE id IN (SELECT value FROM json_each(?)) AND edges_pending = 0;

-- name: remark
-- The same for those of them that are followed already.
UPDATE perdure_jobs SET edges_pending = 1 WHERE id IN (SELECT value FROM json_each(?)) AND followed = 1;

-- name: unmark
-- The edges of these ended jobs are resolved.
UPDATE perdure_jobs SET edges_pending = 0
WHERE id IN (SELECT value FROM json_each(?)) AND finished_at IS NOT NULL AND edges_pending = 1;

-- name: followers
-- The children that wait for these jobs.
SELECT json_group_array(json_array(parent, child)) FROM (
    SELECT parent, child FROM perdure_edges INDEXED BY perdure_edges_open
    WHERE open = 1 AND parent IN (SELECT value FROM json_each(?)) ORDER BY child);

-- name: parents
-- The parents that these jobs wait for.
SELECT json_group_array(json_array(child, parent)) FROM (
    SELECT child, parent FROM perdure_edges
    WHERE open = 1 AND child IN (SELECT value FROM json_each(?)) ORDER BY parent);

-- name: unfinished_children
-- The children that have waited for these jobs and have not ended.
SELECT json_group_array(json_array(parent, child)) FROM (
    SELECT edge.parent, edge.child FROM perdure_edges AS edge CROSS JOIN perdure_jobs AS job ON job.id = edge.child
    WHERE edge.open = 0 AND edge.parent IN (SELECT value FROM json_each(?)) AND job.finished_at IS NULL
    ORDER BY edge.child);

-- name: any_unresolved
-- Whether edges are to be resolved.
SELECT EXISTS (SELECT 1 FROM perdure_jobs WHERE edges_pending = 1 AND finished_at IS NOT NULL)
    OR EXISTS (SELECT 1 FROM perdure_unresolved);

-- name: unresolved
-- The first entries of the list of what is to be resolved.
SELECT json_group_array(json_array(number, job, admit)) FROM (
    SELECT number, job, admit FROM perdure_unresolved ORDER BY number LIMIT ?);

-- name: note_unresolved
-- Jobs whose edges are to be resolved.
INSERT INTO perdure_unresolved (job, admit) SELECT value, 0 FROM json_each(?);

-- name: remove_resolved
-- Entries of the list that are resolved.
DELETE FROM perdure_unresolved WHERE number IN (SELECT value FROM json_each(?));

-- name: ended
-- Followed jobs that have ended and whose edges are to be resolved.
SELECT json_group_array(id) FROM (
    SELECT id FROM perdure_jobs WHERE edges_pending = 1 AND finished_at IS NOT NULL ORDER BY finished_at, id LIMIT ?);

-- name: numbers
-- The rows of these jobs.
SELECT json_group_array(number) FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: parent_states
-- The states of parents.
SELECT json_group_array(json_array(id, state, next_id, hidden)) FROM {whole}
WHERE id IN (SELECT value FROM json_each(?));

-- name: edges
-- Open edges of parents, in the order of these (the loops keep it): all, or only those of children that run however a
-- parent ends.
SELECT json_group_array(json_array(parent, child, run_when)) FROM (
    SELECT edge.parent, edge.child, edge.run_when
    FROM json_each(?) AS input CROSS JOIN perdure_edges AS edge INDEXED BY perdure_edges_open
        ON edge.open = 1 AND edge.parent = json_extract(input.value, '$[0]')
        AND edge.run_when >= CASE json_extract(input.value, '$[1]') WHEN 1 THEN 'finished' ELSE '' END
        AND edge.run_when <= CASE json_extract(input.value, '$[1]') WHEN 1 THEN 'finished' ELSE '~' END
    LIMIT ?);

-- name: open_among
-- Which edges from these parents to these children are open.
WITH input (parent, child) AS (VALUES {values})
SELECT input.parent, input.child FROM input CROSS JOIN perdure_edges AS edge
    ON edge.parent = input.parent AND edge.child = input.child AND edge.open = 1;

-- name: blocked
-- Which of these jobs are still blocked.
SELECT json_group_array(json_array(id, queue, limits IS NOT NULL AND suspect = 0)) FROM perdure_jobs
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'blocked';

-- name: lower
-- Blocked jobs wait for so many parents less. The numbers are found first: in a plain join SQLite reads
-- all bodies for each job of the list.
WITH input (id, closed) AS (VALUES {values}),
found (number, closed) AS MATERIALIZED (
    SELECT job.number, input.closed FROM input CROSS JOIN perdure_jobs AS job ON job.id = input.id)
UPDATE perdure_bodies SET waits = waits - found.closed FROM found WHERE perdure_bodies.number = found.number;

-- name: release
-- Blocked jobs that wait for no parent any more. They are due now, unless their time is to come (one that was due at once stays
-- so, though the clock went back); a fair rank stays.
UPDATE perdure_jobs SET
    version = min(version, 4611686018427387904) + 1,
    state = CASE WHEN run_at > max(created_at, :now) THEN 'scheduled' ELSE 'ready' END,
    rank = CASE WHEN rank = run_at AND run_at <= max(created_at, :now) THEN :now ELSE rank END,
    run_at = CASE WHEN run_at > max(created_at, :now) THEN run_at ELSE :now END,
    parked = run_at <= max(created_at, :now) AND limits IS NOT NULL,
    in_lane = CASE WHEN run_at <= max(created_at, :now) AND limits IS NULL AND suspect = 0 THEN 1 END,
    index_state = CASE WHEN run_at > max(created_at, :now) THEN 'scheduled' WHEN suspect <> 0 THEN 'suspect' END
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'blocked'
    AND (SELECT waits FROM perdure_bodies AS body WHERE body.number = perdure_jobs.number) <= 0;

-- name: clear_waits
-- Jobs that are about to be cancelled.
UPDATE perdure_bodies SET waits = 0
WHERE number IN (SELECT number FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?)));
