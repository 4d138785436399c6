-- name: record
-- The columns of a record, in its order. What NULL stands for is said here.
j.id::text AS id, j.task, j.queue, coalesce(o.state, CASE WHEN h.id IS NULL THEN w.state ELSE 'running' END) AS state,
j.priority,
CASE WHEN o.id IS NOT NULL THEN coalesce(o.rank, o.run_at, j.run_at, j.created_at)
    WHEN h.id IS NOT NULL THEN coalesce(h.rank, h.run_at, j.run_at, j.created_at) ELSE w.rank END AS rank,
j.payload, coalesce(o.version, h.version, w.version, 1) AS version, coalesce(o.attempt, h.attempt, w.attempt, 0) AS attempt,
coalesce(CASE WHEN o.id IS NOT NULL THEN o.failures WHEN h.id IS NOT NULL THEN h.failures ELSE w.failures END, 0)
    AS failures,
coalesce(CASE WHEN o.id IS NOT NULL THEN o.losses WHEN h.id IS NOT NULL THEN h.losses ELSE w.losses END, 0) AS losses,
j.max_attempts, j.timeout, j.lease, {backoff} AS backoff, {retention} AS retention, {dead_retention} AS dead_retention,
j.created_at,
CASE WHEN o.id IS NOT NULL THEN coalesce(o.run_at, j.run_at, j.created_at)
    WHEN h.id IS NOT NULL THEN coalesce(h.run_at, j.run_at, j.created_at) ELSE coalesce(w.run_at, w.rank) END AS run_at,
CASE WHEN o.id IS NOT NULL THEN o.started_at WHEN h.id IS NOT NULL THEN h.started_at ELSE w.started_at END AS started_at,
o.finished_at, j.expires_at, o.prune_at, o.keep_last, h.stamp,
CASE WHEN o.id IS NOT NULL THEN o.accepted_stamp WHEN h.id IS NOT NULL THEN h.accepted_stamp ELSE w.accepted_stamp END AS accepted_stamp,
h.leased_by, h.leased_until, coalesce(o.suspect, h.suspect, w.suspect) AS suspect, coalesce(w.parked, false) AS parked,
coalesce(o.hidden, false) AS hidden, o.result,
CASE WHEN o.id IS NOT NULL THEN o.progress WHEN h.id IS NOT NULL THEN h.progress ELSE w.progress END AS progress,
j.errors,
CASE WHEN o.id IS NOT NULL THEN o.reason WHEN h.id IS NOT NULL THEN h.reason ELSE w.reason END AS reason,
j.key, j.tenant, j.routing_key, j.tags, j.meta, j.unique_key, j.unique_scope,
coalesce(o.held_key, h.held_key, w.held_key) IS NOT NULL AS holds_key, j.chain_id::text AS chain_id, j.after,
{run_when} AS run_when, coalesce(CASE WHEN o.id IS NOT NULL THEN o.waits WHEN h.id IS NOT NULL THEN h.waits ELSE w.waits END, 0)
    AS waits, coalesce(o.followed, h.followed, w.followed, false) AS followed, o.next_id::text AS next_id, j.limits,
coalesce(j.min_version, 1) AS min_version

-- name: backoff
-- How long a failed job waits.
coalesce(j.backoff, '["exponential",1000000,2.0,3600000000,0]')

-- name: retention
-- How long an ended job is kept.
coalesce(j.retention, '{"age":604800000000}')

-- name: dead_retention
-- How long a dead letter is kept.
coalesce(j.dead_retention, '{}')

-- name: run_when
-- When a follower runs.
coalesce(j.run_when, 'succeeded')

-- name: moving
-- A job beside its moving row, or rows.
LEFT JOIN {schema}.waiting w ON w.id = j.id
LEFT JOIN {schema}.holds h ON h.id = j.id
LEFT JOIN {schema}.outcomes o ON o.id = j.id

-- name: moving_by_id
-- The same for a few jobs: looked up one by one, whatever the statistics say.
LEFT JOIN LATERAL (SELECT * FROM {schema}.waiting WHERE waiting.id = j.id OFFSET 0) w ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.holds WHERE holds.id = j.id OFFSET 0) h ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.outcomes WHERE outcomes.id = j.id OFFSET 0) o ON true

-- name: lane_hash
-- Where the claim index has the lane of a ready job: a hash of its queue, and one of its task and routing key.
hashtextextended(w.queue, 0), hashtextextended(w.task, hashtextextended(w.route, 0))

-- name: hash_of_lane
-- The same of a lane that is known by its names.
hashtextextended(lane.queue, 0), hashtextextended(lane.task, hashtextextended(lane.route, 0))

-- name: line_hash
-- Where the index of lines has a ready job: a hash of its task and routing key.
hashtextextended(w.task, hashtextextended(w.route, 0))

-- name: hash_of_line
-- The same of a line that is known by its names.
hashtextextended(line.task, hashtextextended(line.route, 0))

-- name: in_line
-- Whether a job is in the index of lines: no claim has met it in a paused queue.
{can_be_claimed} AND w.in_paused_queue IS NOT TRUE

-- name: can_be_claimed
-- Whether a job is in the claim index.
w.state = 'ready' AND NOT w.parked AND NOT w.suspect
