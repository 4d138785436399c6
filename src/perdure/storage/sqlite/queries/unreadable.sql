-- name: rows
-- Jobs by their numbers, column by column, texts as bytes: they may hold anything.
SELECT job.number, body.number, {columns}
FROM json_each(?) AS wanted CROSS JOIN perdure_jobs AS job ON job.number = wanted.value
LEFT JOIN perdure_bodies AS body ON body.number = job.number
LEFT JOIN perdure_policies AS kept ON kept.number = body.policy;

-- name: next_numbers
-- The next jobs behind a number.
SELECT json_group_array(number) FROM (SELECT number FROM perdure_jobs WHERE number > ? ORDER BY number LIMIT ?);

-- name: misplaced
-- Of the next jobs behind a number, those that no claim, reaper or promotion can find, because what these search by contradicts
-- the state; then the last number that was read, and how many there were. Reads no body: a page of 50,000 takes some ten
-- milliseconds.
SELECT json_group_array(number) FILTER (WHERE sound IS NOT 1), max(number), count(*) FROM (
    SELECT number, CASE state
        WHEN 'ready' THEN stamp IS NULL AND leased_until IS NULL AND parked = (limits IS NOT NULL)
            AND in_lane IS CASE WHEN suspect = 0 AND limits IS NULL THEN 1 END
            AND index_state IS CASE WHEN suspect <> 0 THEN 'suspect' END
        WHEN 'running' THEN stamp IS NOT NULL AND leased_by IS NOT NULL AND leased_until IS NOT NULL AND parked = 0
            AND in_lane IS NULL AND index_state IS NULL
        WHEN 'scheduled' THEN stamp IS NULL AND leased_until IS NULL AND parked = 0 AND in_lane IS NULL AND index_state = state
        WHEN 'blocked' THEN stamp IS NULL AND leased_until IS NULL AND parked = 0 AND in_lane IS NULL AND index_state = state
        ELSE state IN ('succeeded', 'skipped', 'cancelled', 'dead') AND finished_at IS NOT NULL AND parked = 0
            AND in_lane IS NULL AND index_state IS CASE state WHEN 'dead' THEN 'dead' END
        END AS sound
    FROM perdure_jobs WHERE number > ? ORDER BY number LIMIT ?);

-- name: newest_number
-- The number of the newest job.
SELECT coalesce(max(number), 0) FROM perdure_jobs;

-- name: live_numbers
-- The next jobs behind a number that have not ended, as far as an index shows them.
SELECT json_group_array(number) FROM (
    SELECT number FROM (
        SELECT number FROM perdure_jobs WHERE in_lane = 1
        UNION SELECT number FROM perdure_jobs WHERE parked = 1 AND suspect = 0
        UNION SELECT number FROM perdure_jobs WHERE index_state IN ('suspect', 'scheduled', 'blocked')
        UNION SELECT number FROM perdure_jobs WHERE leased_until IS NOT NULL AND limits IS NULL
        UNION SELECT number FROM perdure_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL
        UNION SELECT number FROM perdure_jobs WHERE edges_pending = 1 AND finished_at IS NOT NULL)
    WHERE number > ? ORDER BY number LIMIT ?);

-- name: keep
-- Rows as they were found.
INSERT INTO perdure_unreadable (id, at, table_name, fields, raw) VALUES {values};

-- name: kept
-- What was set aside, the oldest first.
SELECT CAST(id AS BLOB), at, CAST(table_name AS BLOB), CAST(fields AS BLOB), CAST(raw AS BLOB)
FROM perdure_unreadable ORDER BY number LIMIT ?;

-- name: kept_of
-- What was set aside of these jobs, the newest of each last.
SELECT CAST(id AS BLOB), at, CAST(table_name AS BLOB), CAST(fields AS BLOB), CAST(raw AS BLOB)
FROM perdure_unreadable WHERE id IN (SELECT value FROM json_each(?)) ORDER BY number;

-- name: replace_policy
-- A policy in place of one that cannot be read.
INSERT OR REPLACE INTO perdure_policies (number, max_attempts, timeout, backoff, retention, dead_retention)
VALUES (?, ?, ?, ?, ?, ?);

-- name: remove
-- Rows of jobs that are replaced, or are of no job.
DELETE FROM perdure_jobs WHERE number IN (SELECT value FROM json_each(?));

-- name: remove_bodies
-- Their bodies.
DELETE FROM perdure_bodies WHERE number IN (SELECT value FROM json_each(?));

-- name: correct_positions
-- The indexed columns of jobs, by their state.
WITH input (number, in_lane, index_state, parked) AS (VALUES {values})
UPDATE perdure_jobs SET in_lane = input.in_lane, index_state = input.index_state, parked = input.parked
FROM input WHERE perdure_jobs.number = input.number;

-- name: stray_bodies
-- Bodies between two numbers without a job.
SELECT number FROM perdure_bodies
WHERE number > ? AND number <= ? AND NOT EXISTS (SELECT 1 FROM perdure_jobs WHERE perdure_jobs.number = perdure_bodies.number)
LIMIT ?;

-- name: without_gate
-- Those of these parked jobs that wait at no gate.
SELECT json_group_array(id) FROM perdure_jobs AS job
WHERE number IN (SELECT value FROM json_each(?)) AND parked = 1 AND suspect = 0 AND NOT EXISTS (
    SELECT 1 FROM perdure_gates AS gate WHERE gate.limits = job.limits AND gate.queue = job.queue AND gate.task = job.task
        AND coalesce('=' || gate.routing_key, '') = coalesce('=' || job.routing_key, ''));

-- name: idle_closers
-- Limits that close no gate.
DELETE FROM perdure_full_limits
WHERE NOT EXISTS (SELECT 1 FROM perdure_gates WHERE closed_by <> '' AND closed_by = perdure_full_limits.limits);

-- name: reopen_orphans
-- Gates that neither limits nor a pause keep closed.
UPDATE perdure_gates SET closed_by = '' WHERE CASE closed_by WHEN '' THEN 0
    WHEN 'paused' THEN queue NOT IN (SELECT name FROM perdure_queues WHERE paused = 1)
    ELSE NOT EXISTS (SELECT 1 FROM perdure_full_limits WHERE perdure_full_limits.limits = closed_by) END;

-- name: resume_orphans
-- Jobs that were held up by the pause of a queue which is not paused.
UPDATE perdure_jobs SET in_paused_queue = NULL
WHERE in_paused_queue = 1 AND queue NOT IN (SELECT name FROM perdure_queues WHERE paused = 1);

-- name: remove_edges
-- Open edges to blocked jobs among these, from parents that are neither stored nor named by the job.
DELETE FROM perdure_edges WHERE open = 1 AND child IN (
        SELECT id FROM perdure_jobs WHERE number IN (SELECT value FROM json_each(?)) AND state = 'blocked')
    AND NOT EXISTS (SELECT 1 FROM perdure_jobs AS job WHERE job.id = perdure_edges.parent)
    AND NOT EXISTS (
        SELECT 1 FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)
        CROSS JOIN json_each(CASE WHEN json_valid(body.after) THEN body.after END) AS parent
        WHERE job.id = perdure_edges.child AND parent.value = perdure_edges.parent);

-- name: waits
-- Blocked jobs among these that have lost edges (`rules.records.edges_are_lost`): each with the parents that it named. What a caller's
-- transaction has stored is counted later.
SELECT json_group_array(json_array(job.id, parent.value, body.run_when))
FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)
CROSS JOIN json_each(CASE WHEN json_valid(body.after) THEN body.after END) AS parent
WHERE job.number IN (SELECT value FROM json_each(?)) AND job.state = 'blocked'
    AND (SELECT count(*) = 0 OR count(*) <> body.waits FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1)
    AND NOT EXISTS (SELECT 1 FROM perdure_unresolved WHERE perdure_unresolved.job = job.id AND admit = 1);

-- name: waits_for_none
-- Blocked jobs among these that name no other, wait for none, and are on no list.
SELECT json_group_array(job.id) FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)
WHERE job.number IN (SELECT value FROM json_each(?)) AND job.state = 'blocked' AND body.waits = 0 AND body.after IS NULL
    AND NOT EXISTS (SELECT 1 FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1)
    AND NOT EXISTS (SELECT 1 FROM perdure_unresolved WHERE perdure_unresolved.job = job.id);

-- name: note_new
-- Jobs that are to be admitted.
INSERT INTO perdure_unresolved (job, admit) SELECT value, 1 FROM json_each(?);

-- name: unaware
-- Parents of blocked jobs among these whose edges are to be resolved, and that are on no list: not stored, not marked as followed, or
-- ended in a way that does not leave the job waiting.
SELECT json_group_array(parent) FROM (
    SELECT DISTINCT edge.parent
    FROM perdure_jobs AS job CROSS JOIN perdure_edges AS edge ON edge.child = job.id AND edge.open = 1
        LEFT JOIN perdure_jobs AS before ON before.id = edge.parent
        LEFT JOIN perdure_bodies AS body ON body.number = before.number
    WHERE job.number IN (SELECT value FROM json_each(?)) AND job.state = 'blocked'
        AND (before.id IS NULL OR before.followed = 0
            OR (before.finished_at IS NOT NULL AND before.edges_pending = 0
                AND (before.state <> 'dead' OR before.hidden OR edge.run_when = 'finished' OR body.next_id IS NOT NULL)))
        AND NOT EXISTS (SELECT 1 FROM perdure_unresolved WHERE perdure_unresolved.job = edge.parent AND admit = 0));

-- name: count_waits
-- How many jobs these wait for: as many as have an open edge to them.
UPDATE perdure_bodies SET waits = (SELECT count(*) FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1)
FROM perdure_jobs AS job WHERE job.number = perdure_bodies.number AND job.id IN (SELECT value FROM json_each(?));

-- name: note_unresolved
-- Jobs whose edges are to be resolved.
INSERT INTO perdure_unresolved (job, admit) SELECT value, 0 FROM json_each(?);

-- name: any_idle
-- Whether gates and closers contradict each other, or a pause that is over holds jobs up.
SELECT EXISTS (
        SELECT 1 FROM perdure_full_limits
        WHERE NOT EXISTS (SELECT 1 FROM perdure_gates WHERE closed_by <> '' AND closed_by = perdure_full_limits.limits))
    OR EXISTS (
        SELECT 1 FROM perdure_gates WHERE CASE closed_by WHEN '' THEN 0
            WHEN 'paused' THEN queue NOT IN (SELECT name FROM perdure_queues WHERE paused = 1)
            ELSE NOT EXISTS (SELECT 1 FROM perdure_full_limits WHERE perdure_full_limits.limits = closed_by) END)
    OR EXISTS (
        SELECT 1 FROM perdure_jobs WHERE in_paused_queue = 1 AND queue NOT IN (SELECT name FROM perdure_queues WHERE paused = 1));
