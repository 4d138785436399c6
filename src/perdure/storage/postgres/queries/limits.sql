-- name: turn
-- Claimers of limited jobs take turns, until their transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('perdure limits {schema}', 0));

-- name: prospect
-- Whether a claim could find something now; whether a rate opens a gate later; whether there are suspects. Nothing is locked.
SELECT EXISTS (SELECT 1 FROM {schema}.limit_notices) OR EXISTS (SELECT 1 FROM {schema}.limit_free_keys)
        OR EXISTS (SELECT 1 FROM {schema}.limit_best_gates(%(queues)s::text[], %(tasks)s::text[], %(route)s::text, 1))
        OR EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at <= {now})
        OR EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at IS NOT NULL AND closed_at > {now}),
    EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at IS NOT NULL),
    EXISTS (SELECT 1 FROM {schema}.waiting WHERE state = 'ready' AND suspect AND parked);

-- name: read_notices
-- Take a turn, read notices and reopen gates; returns how many notices there were.
SELECT {schema}.limit_read_notices(%(now)s::bigint, %(most)s::integer, %(look)s::integer);

-- name: reopen
-- Open gates whose time has come, or whose key may have free slots; returns how many.
SELECT {schema}.limit_reopen(%(now)s::bigint, %(most)s::integer, %(look)s::integer);

-- name: unparsed
-- The best open gates whose limits nobody has parsed yet.
SELECT DISTINCT lane.gate::text, lane.limits
FROM {schema}.limit_best_gates(%(queues)s::text[], %(tasks)s::text[], %(route)s::text, %(look)s::integer) AS lane
WHERE lane.most IS NULL;

-- name: note_parsed
-- What was parsed: the most jobs that may start at once at best, and the key if that is all.
UPDATE {schema}.limit_gates SET most = (%(mosts)s::bigint[])[array_position(%(gates)s::uuid[], gate)],
    key = (%(keys)s::uuid[])[array_position(%(gates)s::uuid[], gate)]
WHERE gate = ANY(%(gates)s::uuid[]) AND most IS NULL;

-- name: fast_claim
-- Report successes, take a turn and claim, in one statement where that is simple. Close gates whose key is used up, and forget
-- lanes without jobs. The last row has these columns behind those of a record: whether it was simple (NULL: there is nothing),
-- whether jobs are left that may start, whether there are suspects, whether there are gates whose limits nobody has parsed yet,
-- whether there may be more gates, how long the turn took, which successes were accepted (NULL: all), whether nothing was
-- claimed because something else comes first, whether followed jobs ended, and the queues of limited ones.
WITH {succeeding},
withheld AS MATERIALIZED (SELECT {something_first} AS so),
lane AS MATERIALIZED (
    SELECT * FROM {schema}.limit_claim(
        (SELECT so FROM withheld), %(queues)s::text[], %(tasks)s::text[], %(route)s::text, {row_version}, %(limit)s::integer,
        %(now)s::bigint, %(most)s::integer, %(look)s::integer, %(best)s::integer, %(mark_gates)s::uuid[], %(lane_queues)s::text[],
        %(lane_tasks)s::text[], %(lane_routes)s::text[], %(urgencies)s::integer[], %(ranks)s::bigint[],
        %(mark_ids)s::uuid[])
),
picked AS MATERIALIZED (
    SELECT w.ctid AS place FROM {schema}.waiting AS w
    WHERE w.ctid = ANY(ARRAY(SELECT unnest(places) FROM lane)) FOR UPDATE SKIP LOCKED
),
{moved},
came AS MATERIALIZED (SELECT gate, count(*) AS jobs FROM gone GROUP BY 1),
used AS MATERIALIZED (
    SELECT gates.key, min(gates.running) + coalesce(sum(came.jobs), 0) AS running
    FROM (SELECT DISTINCT key, gate, running FROM lane WHERE simple) AS gates LEFT JOIN came ON came.gate = gates.gate
    GROUP BY 1
),
heads AS MATERIALIZED (
    SELECT lane.place, lane.next_urgency, lane.next_rank, lane.next_id FROM lane JOIN used ON used.key = lane.key
    WHERE lane.next_id IS NOT NULL AND used.running < lane.most
)
{claimed_rows}
UNION ALL
SELECT {nothing}, (SELECT bool_and(simple) FROM lane), (SELECT bool_or(unread) FROM lane) OR EXISTS (
        SELECT 1 FROM lane JOIN used ON used.key = lane.key LEFT JOIN came ON came.gate = lane.gate
        WHERE used.running < lane.most GROUP BY lane.gate HAVING sum(lane.jobs) > coalesce(min(came.jobs), 0)),
    EXISTS (SELECT 1 FROM {schema}.waiting AS w WHERE state = 'ready' AND suspect AND parked AND {wanted} AND {can_run}),
    EXISTS (SELECT 1 FROM lane WHERE limits IS NOT NULL), (SELECT bool_and(bounded) FROM lane), (SELECT max(took) FROM lane),
    (SELECT CASE WHEN count(*) < %(reported)s::integer THEN coalesce(array_agg(id::text), '{}') END FROM succeeded),
    (SELECT so FROM withheld), (SELECT count(*) > 0 FROM noted WHERE followed),
    (SELECT array_agg(DISTINCT limited) FROM noted WHERE limited IS NOT NULL),
    {schema}.limit_close(
        ARRAY(SELECT place FROM lane JOIN used ON used.key = lane.key WHERE jobs > 0 AND used.running >= lane.most),
        ARRAY(SELECT place FROM lane WHERE simple AND place IS NOT NULL AND jobs = 0),
        ARRAY(SELECT place FROM lane WHERE simple AND bounded AND NOT marked AND jobs = 0),
        ARRAY(SELECT place FROM heads), ARRAY(SELECT next_urgency FROM heads), ARRAY(SELECT next_rank FROM heads),
        ARRAY(SELECT next_id FROM heads), {now})
ORDER BY 5 DESC NULLS LAST;

-- name: no_outlook
-- What rows of jobs have in the columns of the last one.
NULL::boolean, NULL::boolean, NULL::boolean, NULL::boolean, NULL::boolean, NULL::float8, NULL::text[], NULL::boolean,
    NULL::boolean, NULL::text[], NULL::void

-- name: something_first
-- Whether a followed job ended or a job is due: followers and promoted jobs come first. All successes are written before the turn
-- is taken: the slots that they free serve this claim, and nobody waits for a turn that is spent on writing them.
(SELECT count(*) < 0 FROM succeeded) OR (SELECT count(*) < 0 FROM released) OR (SELECT count(*) > 0 FROM noted WHERE followed)
    OR EXISTS (SELECT 1 FROM {schema}.waiting WHERE state = 'scheduled' AND run_at <= {now})

-- name: nothing_first
-- A claim alone, before which everything else was done.
false

-- name: slot_of_lane
-- The key of a job's gate.
(ARRAY(SELECT lane.key FROM lane))[array_position(ARRAY(SELECT lane.gate FROM lane), gate)]

-- name: slot_given
-- The key of a job's gate, if that is the only one.
(%(slots)s::uuid[])[array_position(%(gates)s::uuid[], gate)]

-- name: look
-- The best open gates that hold wanted jobs: the recorded head of each, and the best of its jobs that can run; and the time.
SELECT {now}, lane.place::text, lane.limits, lane.urgency, lane.rank, lane.head::text, best.urgency, best.rank, best.id::text
FROM {schema}.limit_best_gates(%(queues)s::text[], %(tasks)s::text[], %(route)s::text, %(look)s::integer) AS lane
    LEFT JOIN LATERAL ({best_parked} LIMIT least(lane.most, %(limit)s::integer)) AS best ON true;

-- name: best_parked
-- The jobs of one lane that can run, the best first.
SELECT w.urgency, w.rank, w.id FROM {schema}.waiting AS w
WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
    AND w.state = 'ready' AND w.parked AND NOT w.suspect AND {can_run}
ORDER BY w.urgency, w.rank, w.id

-- name: look_at_suspects
-- Suspects under limits, in the columns of `look`: the best of each gate.
SELECT {now}, NULL, (SELECT jobs.limits FROM {schema}.jobs WHERE jobs.id = best.id), NULL, NULL, NULL, best.urgency, best.rank,
    best.id::text
FROM (
    SELECT w.id, w.urgency, w.rank, row_number() OVER (PARTITION BY w.gate ORDER BY w.urgency, w.rank, w.id) AS place
    FROM {schema}.waiting AS w WHERE w.state = 'ready' AND w.suspect AND w.parked AND {wanted} AND {can_run}
) AS best
WHERE best.place <= %(limit)s::integer;

-- name: openings
-- Wanted gates that have a job which can run, and are open or closed by a rate; and the time.
SELECT {now}, lane.limits
FROM (
        (SELECT w.gate, w.queue, w.task, w.route, w.limits FROM {schema}.limit_best_gates(
            %(queues)s::text[], %(tasks)s::text[], %(route)s::text, %(look)s::integer) AS w)
        UNION ALL
        (SELECT w.gate, w.queue, w.task, w.route, w.limits FROM {schema}.limit_gates AS w
            WHERE w.opens_at IS NOT NULL AND {wanted} ORDER BY w.opens_at LIMIT %(look)s::integer)
    ) AS lane
    CROSS JOIN LATERAL ({best_parked} LIMIT 1) AS best;

-- name: running
-- How many run under these keys.
SELECT given.key::text, {running_now} FROM unnest(%(keys)s::uuid[]) AS given (key);

-- name: running_now
-- How many run under a key.
(SELECT count(*) FROM {schema}.holds WHERE holds.slot = given.key)
    + (SELECT count(*) FROM {schema}.limit_slots WHERE limit_slots.key = given.key)

-- name: starts
-- The remembered claims under these keys, the oldest first.
SELECT key::text, at, times FROM {schema}.limit_starts WHERE key = ANY(%(keys)s::uuid[]) ORDER BY key, at;

-- name: lock
-- Lock these jobs; whether they are parked. Jobs that another session has locked are left out.
SELECT id::text, state = 'ready' AND parked FROM {schema}.waiting WHERE id = ANY(%(ids)s::uuid[])
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: use
-- The keys that claimed jobs with several of them use.
INSERT INTO {schema}.limit_slots (key, job, stamp)
SELECT key, job, %(stamp)s::bigint FROM unnest(%(keys)s::uuid[], %(jobs)s::uuid[]) AS given (key, job);

-- name: forget_starts
-- Claims that count no more.
DELETE FROM {schema}.limit_starts WHERE ctid = ANY(ARRAY(
    SELECT found.place FROM unnest(%(keys)s::uuid[], %(ats)s::bigint[]) AS given (key, at) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM {schema}.limit_starts
        WHERE limit_starts.key = given.key AND limit_starts.at = given.at OFFSET 0) AS found));

-- name: note_starts
-- Claims that count from now on.
INSERT INTO {schema}.limit_starts (key, at, times, until)
SELECT key, at, times, until
FROM unnest(%(keys)s::uuid[], %(ats)s::bigint[], %(times)s::bigint[], %(until)s::bigint[]) AS given (key, at, times, until)
ON CONFLICT (key, at) DO UPDATE SET times = excluded.times, until = excluded.until;

-- name: close
-- Close gates that let nobody through, by the key that is used up; that key has no free slots.
WITH shut AS (
    UPDATE {schema}.limit_gates SET closed_at = %(now)s::bigint,
        closed_by = (%(keys)s::uuid[])[array_position(%(gates)s::uuid[], gate)],
        opens_at = (%(opens)s::bigint[])[array_position(%(gates)s::uuid[], gate)]
    WHERE gate = ANY(%(gates)s::uuid[]) RETURNING closed_by, opens_at
)
DELETE FROM {schema}.limit_free_keys WHERE key = ANY(ARRAY(SELECT closed_by FROM shut WHERE opens_at IS NULL));

-- name: close_others
-- Forget those of the empty lanes that hold no jobs, put the others behind all gates, and move the heads of others.
SELECT {schema}.limit_close('{}'::tid[], %(empty)s::tid[], %(empty)s::tid[], %(moved)s::tid[], %(urgencies)s::integer[],
    %(ranks)s::bigint[], %(ids)s::uuid[], {now});

-- name: mend
-- Repair what a lost notice can leave: release slots without a hold, reopen gates that have been closed for long, and insert
-- notices of lanes without a gate. Clear the marks of jobs and gates whose queue is not paused. Delete starts that ceased to
-- count a day ago.
WITH over AS (DELETE FROM {schema}.limit_starts WHERE until < {now} - 86400000000),
resumed_jobs AS (
    UPDATE {schema}.waiting AS w SET in_paused_queue = NULL
    WHERE w.in_paused_queue AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused)
),
resumed_gates AS (
    UPDATE {schema}.limit_gates AS w SET paused = false
    WHERE w.paused AND w.closed_by IS NULL
        AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused)
),
lost AS (
    INSERT INTO {schema}.limit_notices (job, stamp)
    SELECT DISTINCT slot.job, slot.stamp FROM {schema}.limit_slots AS slot
    WHERE NOT EXISTS (SELECT 1 FROM {schema}.holds WHERE holds.id = slot.job AND holds.stamp = slot.stamp)
),
opened AS (
    UPDATE {schema}.limit_gates SET closed_by = NULL,
        paused = (SELECT queues.paused FROM {schema}.queues WHERE queues.name = limit_gates.queue) IS TRUE
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.limit_gates
        WHERE closed_by IS NOT NULL AND opens_at IS NULL AND closed_at < {now} - %(long)s::bigint
        ORDER BY closed_at LIMIT %(look)s::integer))
)
INSERT INTO {schema}.limit_notices (gate, queue, task, route)
SELECT lane.gate, lane.queue, lane.task, lane.route FROM ({parked_lanes}) AS lane
WHERE NOT EXISTS (
    SELECT 1 FROM {schema}.limit_gates AS known
    WHERE known.gate = lane.gate AND known.queue = lane.queue AND known.task = lane.task AND known.route = lane.route);

-- name: parked_lanes
-- The lanes that hold parked jobs: a loose scan of their index.
WITH RECURSIVE every AS (
    (SELECT w.gate, w.queue, w.task, w.route FROM {schema}.waiting AS w
        WHERE w.state = 'ready' AND w.parked AND NOT w.suspect AND w.gate IS NOT NULL
        ORDER BY w.gate, w.queue, w.task, w.route LIMIT 1)
    UNION ALL
    SELECT next.gate, next.queue, next.task, next.route
    FROM every CROSS JOIN LATERAL (
        SELECT w.gate, w.queue, w.task, w.route FROM {schema}.waiting AS w
        WHERE w.state = 'ready' AND w.parked AND NOT w.suspect
            AND (w.gate, w.queue, w.task, w.route) > (every.gate, every.queue, every.task, every.route)
        ORDER BY w.gate, w.queue, w.task, w.route LIMIT 1) AS next
)
SELECT every.gate, every.queue, every.task, every.route FROM every

-- name: take
-- Claim these jobs, which are locked.
WITH picked AS MATERIALIZED (SELECT w.ctid AS place FROM {schema}.waiting AS w WHERE w.id = ANY(%(ids)s::uuid[])),
{claimed};
