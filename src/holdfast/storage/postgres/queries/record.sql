-- name: record
-- The columns of a record, in its order. What NULL stands for is said here and nowhere else.
j.id::text AS id, j.task, j.queue, coalesce(o.state, CASE WHEN h.id IS NULL THEN w.state ELSE 'running' END) AS state,
j.priority,
CASE WHEN o.id IS NOT NULL THEN coalesce(o.rank, o.run_at, j.run_at)
    WHEN h.id IS NOT NULL THEN coalesce(h.rank, h.run_at, j.run_at) ELSE w.rank END AS rank,
j.payload, coalesce(o.version, h.version, w.version) AS version, coalesce(o.attempt, h.attempt, w.attempt) AS attempt,
coalesce(o.failures, h.failures, w.failures) AS failures, coalesce(o.losses, h.losses, w.losses) AS losses,
j.max_attempts, j.timeout, j.lease,
coalesce(j.backoff, '["exponential",1000000,2.0,3600000000,0]') AS backoff,
coalesce(j.retention, '{"age":604800000000}') AS retention, coalesce(j.dead_retention, '{}') AS dead_retention,
j.created_at,
CASE WHEN o.id IS NOT NULL THEN coalesce(o.run_at, j.run_at)
    WHEN h.id IS NOT NULL THEN coalesce(h.run_at, j.run_at) ELSE w.run_at END AS run_at,
CASE WHEN o.id IS NOT NULL THEN o.started_at WHEN h.id IS NOT NULL THEN h.started_at ELSE w.started_at END AS started_at,
o.finished_at, j.expires_at, o.prune_at, o.keep_last, h.stamp,
CASE WHEN o.id IS NOT NULL THEN o.settled WHEN h.id IS NOT NULL THEN h.settled ELSE w.settled END AS settled,
h.leased_by, h.leased_until, coalesce(o.suspect, h.suspect, w.suspect) AS suspect, coalesce(w.parked, false) AS parked,
coalesce(o.hidden, false) AS hidden, o.result,
CASE WHEN o.id IS NOT NULL THEN o.progress WHEN h.id IS NOT NULL THEN h.progress ELSE w.progress END AS progress,
j.errors,
CASE WHEN o.id IS NOT NULL THEN o.reason WHEN h.id IS NOT NULL THEN h.reason ELSE w.reason END AS reason,
j.key, j.tenant, j.routing_key, j.tags, j.meta, j.unique_key, j.unique_scope,
coalesce(o.held_key, h.held_key, w.held_key) IS NOT NULL AS holds_key, j.chain_id::text AS chain_id, j.after,
coalesce(j.run_when, 'succeeded') AS run_when, coalesce(o.waits, h.waits, w.waits, 0) AS waits, j.limits, j.min_version

-- name: moving
-- A job beside its moving row, or rows.
LEFT JOIN {schema}.waiting w ON w.id = j.id
LEFT JOIN {schema}.holds h ON h.id = j.id
LEFT JOIN {schema}.outcomes o ON o.id = j.id
