-- name: rows
-- Jobs by their numbers, column by column, texts as bytes: they may hold anything.
SELECT job.number, body.number, {columns}
FROM json_each(?) AS wanted CROSS JOIN perdure_jobs AS job ON job.number = wanted.value
LEFT JOIN perdure_bodies AS body ON body.number = job.number
LEFT JOIN perdure_policies AS kept ON kept.number = body.policy;

-- name: next_numbers
-- The next jobs behind a number.
SELECT json_group_array(number) FROM (SELECT number FROM perdure_jobs WHERE number > ? ORDER BY number LIMIT ?);

-- name: live_numbers
-- The next jobs behind a number that have not ended, as far as an index shows them.
SELECT json_group_array(number) FROM (
    SELECT number FROM (
        SELECT number FROM perdure_jobs WHERE in_lane = 1
        UNION SELECT number FROM perdure_jobs WHERE parked = 1 AND suspect = 0
        UNION SELECT number FROM perdure_jobs WHERE apart IN ('suspect', 'scheduled', 'blocked')
        UNION SELECT number FROM perdure_jobs WHERE leased_until IS NOT NULL AND limits IS NULL
        UNION SELECT number FROM perdure_jobs WHERE stamp IS NOT NULL AND limits IS NOT NULL
        UNION SELECT number FROM perdure_jobs WHERE releases = 1 AND finished_at IS NOT NULL)
    WHERE number > ? ORDER BY number LIMIT ?);

-- name: keep
-- Rows as they were found.
INSERT INTO perdure_unreadable (id, at, place, fields, raw) VALUES {values};

-- name: kept
-- What was set aside, the oldest first.
SELECT id, at, place, fields, raw FROM perdure_unreadable ORDER BY number LIMIT ?;

-- name: kept_of
-- What was set aside of these jobs, the newest of each last.
SELECT id, at, place, fields, raw FROM perdure_unreadable WHERE id IN (SELECT value FROM json_each(?)) ORDER BY number;

-- name: replace_policy
-- What jobs have in common, in place of what cannot be read.
INSERT OR REPLACE INTO perdure_policies (number, max_attempts, timeout, backoff, retention, dead_retention)
VALUES (?, ?, ?, ?, ?, ?);

-- name: remove
-- Rows of jobs that are replaced, or are of no job.
DELETE FROM perdure_jobs WHERE number IN (SELECT value FROM json_each(?));

-- name: remove_bodies
-- Their bodies.
DELETE FROM perdure_bodies WHERE number IN (SELECT value FROM json_each(?));

-- name: put_in_place
-- Where a job stands, by its state.
WITH given (number, in_lane, apart, parked) AS (VALUES {values})
UPDATE perdure_jobs SET in_lane = given.in_lane, apart = given.apart, parked = given.parked
FROM given WHERE perdure_jobs.number = given.number;

-- name: stray_bodies
-- Bodies without a job.
SELECT number FROM perdure_bodies WHERE number > ? AND number NOT IN (SELECT number FROM perdure_jobs) LIMIT ?;

-- name: without_gate
-- Those of these parked jobs that wait at no gate.
SELECT json_group_array(id) FROM perdure_jobs AS job
WHERE number IN (SELECT value FROM json_each(?)) AND parked = 1 AND suspect = 0 AND NOT EXISTS (
    SELECT 1 FROM perdure_gates AS gate WHERE gate.limits = job.limits AND gate.queue = job.queue AND gate.task = job.task
        AND coalesce('=' || gate.routing_key, '') = coalesce('=' || job.routing_key, ''));

-- name: idle_closers
-- Limits that close no gate.
DELETE FROM perdure_closers
WHERE NOT EXISTS (SELECT 1 FROM perdure_gates WHERE closed_by <> '' AND closed_by = perdure_closers.limits);

-- name: reopen_orphans
-- Gates that are closed by nothing.
UPDATE perdure_gates SET closed_by = ''
WHERE closed_by <> '' AND NOT EXISTS (SELECT 1 FROM perdure_closers WHERE perdure_closers.limits = closed_by);

-- name: remove_edges
-- Open edges to blocked jobs among these, from parents that are neither on record nor named by the job.
DELETE FROM perdure_edges WHERE open = 1 AND child IN (
        SELECT id FROM perdure_jobs WHERE number IN (SELECT value FROM json_each(?)) AND state = 'blocked')
    AND NOT EXISTS (SELECT 1 FROM perdure_jobs AS job WHERE job.id = perdure_edges.parent)
    AND NOT EXISTS (
        SELECT 1 FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)
        CROSS JOIN json_each(CASE WHEN json_valid(body.after) THEN body.after END) AS parent
        WHERE job.id = perdure_edges.child AND parent.value = perdure_edges.parent);

-- name: waits
-- Blocked jobs among these that wait for more jobs than there are open edges to them: each with the parents that it named.
SELECT json_group_array(json_array(job.id, parent.value, body.run_when))
FROM perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)
CROSS JOIN json_each(CASE WHEN json_valid(body.after) THEN body.after END) AS parent
WHERE job.number IN (SELECT value FROM json_each(?)) AND job.state = 'blocked'
    AND body.waits > (SELECT count(*) FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1);

-- name: count_waits
-- How many jobs these wait for: as many as have an open edge to them.
UPDATE perdure_bodies SET waits = (SELECT count(*) FROM perdure_edges AS edge WHERE edge.child = job.id AND edge.open = 1)
FROM perdure_jobs AS job WHERE job.number = perdure_bodies.number AND job.id IN (SELECT value FROM json_each(?));

-- name: note_unsettled
-- Jobs whose edges are to be looked at.
INSERT INTO perdure_unsettled (job, placing) SELECT value, 0 FROM json_each(?);

-- name: any_idle
-- Whether gates and closers contradict each other.
SELECT EXISTS (
        SELECT 1 FROM perdure_closers
        WHERE NOT EXISTS (SELECT 1 FROM perdure_gates WHERE closed_by <> '' AND closed_by = perdure_closers.limits))
    OR EXISTS (
        SELECT 1 FROM perdure_gates WHERE closed_by <> ''
            AND NOT EXISTS (SELECT 1 FROM perdure_closers WHERE perdure_closers.limits = closed_by));
