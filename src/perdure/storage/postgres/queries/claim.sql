-- name: promote
-- Scheduled jobs whose time has come become ready, the earliest first; those under limits are parked.
WITH promoted AS (
    UPDATE {schema}.waiting SET state = 'ready', version = coalesce(version, 1) + 1, parked = gate IS NOT NULL
    WHERE id = ANY(ARRAY(
        SELECT id FROM {schema}.waiting WHERE state = 'scheduled' AND run_at <= {now}
        ORDER BY run_at, id LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED))
    RETURNING queue, task, route, gate
),
notices AS (
    INSERT INTO {schema}.limit_notices (gate, queue, task, route)
    SELECT DISTINCT gate, queue, task, route FROM promoted WHERE gate IS NOT NULL
)
SELECT queue FROM promoted;

-- name: outlook
-- When the next job is due, whether there are suspects that this want would get, and how long the transaction took so far.
SELECT (SELECT run_at FROM {schema}.waiting WHERE state = 'scheduled' ORDER BY run_at LIMIT 1) - {now}, EXISTS (
        SELECT 1 FROM {schema}.waiting AS w
        WHERE state = 'ready' AND suspect AND parked = %(limited)s::boolean AND {wanted} AND {can_run}),
    extract(epoch FROM clock_timestamp() - transaction_timestamp())::float8;

-- name: wanted
-- Whether a job is wanted.
(%(queues)s::text[] IS NULL OR w.queue = ANY(%(queues)s::text[]))
AND (%(tasks)s::text[] IS NULL OR w.task = ANY(%(tasks)s::text[]))
AND (%(route)s::text IS NULL OR w.route = %(route)s::text)
AND (SELECT queues.paused FROM {schema}.queues WHERE queues.name = w.queue) IS NOT TRUE

-- name: can_run
-- Whether a ready job may be claimed by this version, now.
coalesce(w.min_version, 1) <= {row_version} AND (w.expires_at IS NULL OR w.expires_at > {now} OR w.started_at IS NOT NULL)

-- name: from_start
-- The columns of a lane that is read from its first job.
w.queue, w.task, w.route, -2147483648 AS urgency, -9223372036854775808 AS rank, '00000000-0000-0000-0000-000000000000'::uuid AS id

-- name: all_lanes
-- The lanes that hold wanted jobs, in every queue: a loose scan of the claim index, one seek per lane, however many jobs it
-- holds. Where there are very many, the lanes of the best jobs alone, which are found along the lines. The jobs of paused queues
-- that are first there are marked, and no later claim reads them; only where there are very many of them, this claim reads
-- every lane.
SELECT {from_start}
FROM (
    WITH RECURSIVE lane AS (
        (SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w WHERE {can_be_claimed} ORDER BY {lane_hash} LIMIT 1)
        UNION ALL
        SELECT next.queue, next.task, next.route
        FROM lane CROSS JOIN LATERAL (
            SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
            WHERE {can_be_claimed} AND ({lane_hash}) > ({hash_of_lane}) ORDER BY {lane_hash} LIMIT 1) AS next
    ),
    first AS MATERIALIZED (SELECT * FROM lane LIMIT 33),
    many AS MATERIALIZED (SELECT count(*) > 32 AS so FROM first),
    unmarked AS MATERIALIZED (SELECT {schema}.mark_paused_jobs((SELECT so FROM many), 20000) AS so),
    line AS (
        (SELECT w.task, w.route FROM {schema}.waiting AS w WHERE {in_line} ORDER BY {line_hash} LIMIT 1)
        UNION ALL
        SELECT next.task, next.route
        FROM line CROSS JOIN LATERAL (
            SELECT w.task, w.route FROM {schema}.waiting AS w
            WHERE {in_line} AND {line_hash} > {hash_of_line} ORDER BY {line_hash} LIMIT 1) AS next
    )
    SELECT * FROM first WHERE NOT (SELECT so FROM many)
    UNION ALL
    SELECT * FROM lane WHERE (SELECT so FROM many) AND (SELECT so FROM unmarked)
    UNION ALL
    SELECT DISTINCT best.queue, best.task, best.route
    FROM line CROSS JOIN LATERAL (
        SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
        WHERE {line_hash} = {hash_of_line} AND {in_line} AND (w.task, w.route) = (line.task, line.route)
            AND {wanted} AND {can_run}
        ORDER BY w.urgency, w.rank, w.id LIMIT %(limit)s::integer {line_lock}) AS best
    WHERE (SELECT so FROM many) AND NOT (SELECT so FROM unmarked)
        AND (%(tasks)s::text[] IS NULL OR line.task = ANY(%(tasks)s::text[]))
        AND (%(route)s::text IS NULL OR line.route = %(route)s::text)
) AS w WHERE {wanted}

-- name: named_lanes
-- The lanes that hold wanted jobs, in the queues that are named.
SELECT {from_start}
FROM (
    WITH RECURSIVE lane AS (
        SELECT head.queue, head.task, head.route
        FROM unnest(%(queues)s::text[]) AS asked (queue) CROSS JOIN LATERAL (
            SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
            WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(asked.queue, 0)
            ORDER BY {lane_hash} LIMIT 1) AS head
        UNION
        SELECT next.queue, next.task, next.route
        FROM lane CROSS JOIN LATERAL (
            SELECT w.queue, w.task, w.route FROM {schema}.waiting AS w
            WHERE {can_be_claimed} AND hashtextextended(w.queue, 0) = hashtextextended(lane.queue, 0)
                AND ({lane_hash}) > ({hash_of_lane})
            ORDER BY {lane_hash} LIMIT 1) AS next
    )
    SELECT * FROM lane
) AS w WHERE {wanted}

-- name: marked_lanes
-- The lanes of the last claim, each with the mark behind which its jobs lie. A paused queue has none.
SELECT given.* FROM unnest(
        %(lane_queues)s::text[], %(lane_tasks)s::text[], %(lane_routes)s::text[], %(urgencies)s::integer[],
        %(ranks)s::bigint[], %(mark_ids)s::uuid[]) AS given (queue, task, route, urgency, rank, id)
WHERE (SELECT queues.paused FROM {schema}.queues WHERE queues.name = given.queue) IS NOT TRUE

-- name: best
-- The best jobs of one lane behind its mark.
SELECT w.ctid AS place, w.urgency, w.rank, w.id FROM {schema}.waiting AS w
WHERE ({lane_hash}) = ({hash_of_lane}) AND (w.urgency, w.rank, w.id) > (lane.urgency, lane.rank, lane.id)
    AND {can_be_claimed} AND (w.queue, w.task, w.route) = (lane.queue, lane.task, lane.route) AND {can_run}
ORDER BY w.urgency, w.rank, w.id LIMIT %(limit)s::integer

-- name: locked
-- The best of each lane, passing over those that another claimer has locked. Of several lanes more are locked than taken.
SELECT best.place FROM lane CROSS JOIN LATERAL ({best} FOR UPDATE SKIP LOCKED) AS best
ORDER BY best.urgency, best.rank, best.id LIMIT %(limit)s::integer

-- name: merged
-- The best of all lanes, merged by their heads; those of them that another claimer has locked are missing. Looked up by
-- their places alone: with any other condition an index could be read from end to end instead.
SELECT w.ctid AS place FROM {schema}.waiting AS w
WHERE w.ctid = ANY(ARRAY(
        SELECT best.place FROM lane CROSS JOIN LATERAL ({best}) AS best
        ORDER BY best.urgency, best.rank, best.id LIMIT %(limit)s::integer))
FOR UPDATE SKIP LOCKED

-- name: left
-- Whether wanted jobs are left, or locked by another claimer, after a claim from the start.
WITH lane AS MATERIALIZED ({lanes}) SELECT EXISTS (SELECT 1 FROM lane CROSS JOIN LATERAL ({best}) AS best);

-- name: take
-- Claim the picked jobs of the lanes.
WITH lane AS MATERIALIZED ({lanes}), picked AS MATERIALIZED ({picked}), {claimed};

-- name: take_suspects
-- Claim suspects, which run alone.
WITH picked AS MATERIALIZED (
    SELECT w.ctid AS place FROM {schema}.waiting AS w
    WHERE w.state = 'ready' AND w.suspect AND NOT w.parked AND {wanted} AND {can_run}
    ORDER BY w.urgency, w.rank, w.id LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED
),
{claimed};

-- name: claimed
-- Move the picked jobs from waiting to holds; returns their records.
{moved}
SELECT {claimed_columns} FROM taken AS j

-- name: moved
-- From the waiting rows to the holds.
gone AS (
    DELETE FROM {schema}.waiting WHERE ctid = ANY(ARRAY(SELECT place FROM picked))
    RETURNING id, queue, task, urgency, rank, run_at, expires_at, accepted_stamp, min_version, version, attempt, failures, losses,
        waits, suspect, key_waits, held_key, reason, progress, followed, gate
),
moment AS MATERIALIZED (SELECT {now} AS now),
taken AS MATERIALIZED (
    SELECT gone.*, {ordinary} AS ordinary, (SELECT now FROM moment) AS now, j.created_at, j.lease,
        j.run_at AS first_run_at, j.timeout, j.max_attempts, j.priority, j.chain_id, j.payload, j.backoff, j.retention, j.dead_retention, j.run_when, j.key, j.tenant, j.routing_key, j.tags, j.meta,
        j.unique_key, j.unique_scope, j.after, j.limits, j.errors
    FROM gone CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = gone.id OFFSET 0) AS j
),
held AS (
    INSERT INTO {schema}.holds (
        stamp, leased_until, lease, run_at, rank, accepted_stamp, version, attempt, failures, losses, waits, id, suspect,
        leased_by, held_key, reason, progress, followed, limited, slot)
    SELECT %(stamp)s::bigint, now + lease, lease, nullif(coalesce(run_at, rank), coalesce(first_run_at, created_at)),
        nullif(rank, coalesce(run_at, rank)), accepted_stamp, coalesce(version, 1) + 1, coalesce(attempt, 0) + 1, failures,
        losses, waits, id, suspect, %(worker)s::text, CASE WHEN NOT key_waits THEN held_key END, reason, progress,
        followed, CASE WHEN gate IS NOT NULL THEN queue END, {slot}
    FROM taken
),
freed AS (
    DELETE FROM {schema}.held_keys
    WHERE key = ANY(ARRAY(SELECT held_key FROM gone WHERE key_waits AND held_key IS NOT NULL))
)

-- name: row_each
-- Each claimed job in a row of its own: where there are few of them, that is quicker.
SELECT {claimed_columns}, {no_outlook} FROM taken AS j

-- name: grouped_rows
-- Claimed jobs; ordinary ones that are alike share a row.
SELECT {claimed_columns}, {no_outlook} FROM taken AS j WHERE NOT j.ordinary
UNION ALL
SELECT {grouped_columns}, {no_outlook} FROM taken AS j WHERE j.ordinary GROUP BY {group_by}

-- name: is_ordinary
-- Whether a job has only defaults, was never tried, and is due since it was made. See `claimed_of` in records.py.
num_nonnulls(gone.run_at, gone.expires_at, gone.accepted_stamp, nullif(gone.min_version, {row_version}), gone.version,
    gone.attempt, gone.failures, gone.losses, gone.waits, gone.held_key, gone.reason, gone.progress, gone.followed, j.run_at,
    j.chain_id, j.run_when, j.key, j.tenant, j.tags, j.meta, j.unique_key, j.unique_scope, j.after, j.errors) = 0
AND gone.rank = j.created_at AND NOT gone.suspect AND NOT gone.key_waits AND strpos(j.payload, chr(30)) = 0

-- name: slot
-- The key that a claimed job uses: jobs without limits use none.
NULL::uuid

-- name: claimed_columns
-- The columns of a record, in its order, as it is once claimed.
j.id::text, j.task, j.queue, 'running', j.priority, j.rank, j.payload, coalesce(j.version, 1) + 1,
    coalesce(j.attempt, 0) + 1, coalesce(j.failures, 0), coalesce(j.losses, 0), j.max_attempts, j.timeout, j.lease,
    {backoff}, {retention}, {dead_retention}, j.created_at, coalesce(j.run_at, j.rank), NULL, NULL, j.expires_at, NULL,
    NULL, %(stamp)s::bigint, j.accepted_stamp, %(worker)s::text, j.now + j.lease, j.suspect, false, false, NULL, j.progress,
    j.errors, j.reason, j.key, j.tenant, j.routing_key, j.tags, j.meta, j.unique_key, j.unique_scope,
    j.held_key IS NOT NULL AND NOT j.key_waits, j.chain_id::text, j.after, {run_when}, coalesce(j.waits, 0),
    coalesce(j.followed, false), NULL, j.limits, coalesce(j.min_version, 1)

-- name: group_by
-- What ordinary jobs that share a row have in common.
j.task, j.queue, j.priority, j.max_attempts, j.timeout, j.lease, j.backoff, j.retention, j.dead_retention, j.routing_key,
    j.limits

-- name: grouped_columns
-- Ordinary jobs that are alike, in one row: instead of the id, the instants and ids of all, joined; the payloads, joined. It has
-- no rank, and the other columns are those of each job.
string_agg(j.created_at || ' ' || j.id, chr(30)), j.task, j.queue, 'running', j.priority, NULL,
    string_agg(j.payload, chr(30)), 2, 1, 0, 0, j.max_attempts, j.timeout, j.lease, {backoff}, {retention},
    {dead_retention}, 0, 0, NULL, NULL, NULL, NULL, NULL, %(stamp)s::bigint, NULL, %(worker)s::text,
    (SELECT now FROM moment) + j.lease, false, false, false, NULL, NULL, NULL, NULL, NULL, NULL, j.routing_key, NULL, NULL,
    NULL, NULL, false, NULL, NULL, 'succeeded', 0, false, NULL, j.limits, {row_version}

-- name: exchange
-- Successes and a claim in one statement. Its last row has, behind the columns of a record, when the next job is due,
-- whether there are suspects, how long it took, whether jobs were passed over that another claimer has locked, which
-- successes were accepted (NULL: all), whether followed jobs ended, and the queues of limited ones. Where a job is due it
-- claims nothing, because that job has to be promoted first. Nor where a followed job ended: its followers come first.
WITH due AS MATERIALIZED (
    SELECT (SELECT run_at FROM {schema}.waiting WHERE state = 'scheduled' ORDER BY run_at LIMIT 1) - {now} AS wait
),
{succeeding},
lane AS MATERIALIZED (
    SELECT every.* FROM ({lanes}) AS every
    WHERE (SELECT coalesce(wait, 1) > 0 FROM due) AND (SELECT count(*) = 0 FROM noted WHERE followed)),
{picking},
{moved}
{claimed_rows}
UNION ALL
SELECT {nothing}, (SELECT wait FROM due), EXISTS (
        SELECT 1 FROM {schema}.waiting AS w WHERE state = 'ready' AND suspect AND NOT parked AND {wanted} AND {can_run}),
    extract(epoch FROM clock_timestamp() - transaction_timestamp())::float8,
    (SELECT count(*) FROM seen) > (SELECT count(*) FROM picked),
    (SELECT CASE WHEN count(*) < %(reported)s::integer THEN coalesce(array_agg(id::text), '{}') END FROM succeeded),
    (SELECT count(*) > 0 FROM noted WHERE followed), (SELECT array_agg(DISTINCT limited) FROM noted WHERE limited IS NOT NULL)
ORDER BY 5 DESC NULLS LAST;

-- name: no_outlook
-- What rows of jobs have in the columns of the last one.
NULL::bigint, NULL::boolean, NULL::float8, NULL::boolean, NULL::text[], NULL::boolean, NULL::text[]

-- name: no_successes
-- A claim alone: no job has ended.
noted AS (SELECT NULL::boolean AS followed, NULL::text AS limited WHERE false),
succeeded AS (SELECT NULL::uuid AS id WHERE false)

-- name: picking_merged
-- The best of all lanes; what another claimer has locked is seen and not picked.
seen AS MATERIALIZED (
    SELECT best.place FROM lane CROSS JOIN LATERAL ({best}) AS best
    ORDER BY best.urgency, best.rank, best.id LIMIT %(limit)s::integer
),
picked AS MATERIALIZED (
    SELECT w.ctid AS place FROM {schema}.waiting AS w WHERE w.ctid = ANY(ARRAY(SELECT place FROM seen)) FOR UPDATE SKIP LOCKED
)

-- name: picking_locked
-- The best of one lane, passing over what another claimer has locked.
picked AS MATERIALIZED ({locked}), seen AS (SELECT place FROM picked)
