-- name: take_keys
-- Free keys of scope any and window, in the caller's transaction.
INSERT INTO perdure_keys (key, starts, ends, job)
SELECT {unique_key}, {created_at}, {key_ends}, {id}
FROM json_each(?) AS job
WHERE {unique_scope} IN ('any', 'window')
    AND NOT EXISTS (SELECT 1 FROM perdure_jobs WHERE perdure_jobs.id = {id})
    AND NOT EXISTS (
        SELECT 1 FROM perdure_keys AS taken
        WHERE taken.key = {unique_key} AND (taken.ends IS NULL OR taken.ends > {created_at}))
ON CONFLICT DO NOTHING;

-- name: policies
-- Policies of new jobs; most are stored already.
INSERT INTO perdure_policies (number, max_attempts, timeout, backoff, retention, dead_retention)
SELECT {policy}, {max_attempts}, {timeout}, {backoff}, {retention}, {dead_retention} FROM json_each(?) AS job WHERE true
ON CONFLICT DO NOTHING;

-- name: insert
-- Jobs whose key is free, or that have none, in the caller's transaction. Those of a fair queue are blocked until they
-- have their rank.
INSERT INTO perdure_jobs (
    id, task, queue, state, in_lane, index_state, priority, rank, version, attempt, failures, losses, lease, created_at,
    run_at, expires_at, suspect, parked, hidden, routing_key, unique_key, holds_key, limits)
SELECT {id}, {task}, {queue}, CASE WHEN {fair} THEN 'blocked' ELSE {state} END,
    CASE WHEN {state} = 'ready' AND {limits} IS NULL AND NOT {fair} THEN 1 END,
    CASE WHEN {fair} THEN 'blocked' WHEN {state} <> 'ready' THEN {state} END,
    {priority}, {run_at}, 1, 0, 0, 0, {lease}, {created_at}, {run_at}, {expires_at}, 0,
    {state} = 'ready' AND {limits} IS NOT NULL AND NOT {fair}, 0, {routing_key}, {unique_key}, {holds_key}, {limits}
FROM json_each(?) AS job
WHERE {unique_scope} IS NULL OR {unique_scope} NOT IN ('any', 'window')
    OR EXISTS (
        SELECT 1 FROM perdure_keys AS taken
        WHERE taken.key = {unique_key} AND taken.starts = {created_at} AND taken.job = {id})
ON CONFLICT DO NOTHING;

-- name: bodies
-- The bodies of new jobs.
INSERT INTO perdure_bodies (
    number, payload, policy, min_version, run_when, waits, key, tenant, tags, meta, unique_scope, chain_id, after)
SELECT stored.number, {payload}, {policy}, {min_version}, {run_when}, {waits}, {key}, {tenant}, {tags}, {meta},
    {unique_scope}, {chain_id}, {after}
FROM json_each(?) AS job CROSS JOIN perdure_jobs AS stored ON stored.id = {id}
WHERE true
ON CONFLICT DO NOTHING;

-- name: admit
-- Jobs whose rank, gate or edges depend on stored rows are to be admitted.
INSERT INTO perdure_unresolved (job, admit)
SELECT {id}, 1 FROM json_each(?) AS job
WHERE ({limits} IS NOT NULL OR {after} IS NOT NULL OR {fair})
    AND EXISTS (SELECT 1 FROM perdure_jobs AS stored WHERE stored.id = {id} AND stored.finished_at IS NULL)
ORDER BY job.key;

-- name: edges
-- Edges to jobs with parents, from these or from the owners of their keys.
INSERT INTO perdure_edges (parent, child, run_when, open)
WITH input (id, after, run_when, unique_key, unique_scope, created_at) AS (
    SELECT {id}, {after}, {run_when}, {unique_key}, {unique_scope}, {created_at} FROM json_each(?) AS job)
SELECT DISTINCT
    coalesce(
        (SELECT stored.id FROM perdure_jobs AS stored WHERE stored.id = parent.value),
        (SELECT CASE WHEN twin.unique_scope IN ('any', 'window')
            THEN (
                SELECT taken.job FROM perdure_keys AS taken
                WHERE taken.key = twin.unique_key AND (taken.ends IS NULL OR taken.ends > twin.created_at)
                ORDER BY taken.starts DESC LIMIT 1)
            ELSE (
                SELECT owner.id FROM perdure_jobs AS owner
                WHERE owner.holds_key = 1 AND owner.unique_key = twin.unique_key)
            END
        FROM input AS twin WHERE twin.id = parent.value),
        parent.value),
    child.id, child.run_when, 1
FROM input AS child CROSS JOIN json_each(child.after) AS parent
WHERE EXISTS (SELECT 1 FROM perdure_jobs AS stored WHERE stored.id = child.id AND stored.state = 'blocked')
ON CONFLICT DO NOTHING;

-- name: unresolved
-- The parents whose edges are to be resolved.
INSERT INTO perdure_unresolved (job, admit)
SELECT DISTINCT edge.parent, 0 FROM json_each(?) AS job CROSS JOIN perdure_edges AS edge ON edge.child = {id}
WHERE edge.open = 1;

-- name: readback
-- The id that each call gets: that of the new job, or of the owner of its key.
SELECT job.key, coalesce(
    (SELECT stored.id FROM perdure_jobs AS stored WHERE stored.id = {id}),
    CASE WHEN {unique_scope} IN ('any', 'window')
    THEN (
        SELECT taken.job FROM perdure_keys AS taken
        WHERE taken.key = {unique_key} AND (taken.ends IS NULL OR taken.ends > {created_at})
        ORDER BY taken.starts DESC LIMIT 1)
    ELSE (SELECT owner.id FROM perdure_jobs AS owner WHERE owner.holds_key = 1 AND owner.unique_key = {unique_key})
    END)
FROM json_each(?) AS job ORDER BY job.key;
