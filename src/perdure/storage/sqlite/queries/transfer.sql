-- name: export
-- Whole jobs behind a position, the oldest first.
SELECT CAST(json_group_array(json_array({record})) AS BLOB) FROM (
    SELECT * FROM perdure_jobs INDEXED BY perdure_jobs_created CROSS JOIN perdure_bodies USING (number)
    WHERE created_at >= :created_at AND (created_at > :created_at OR id > :id) ORDER BY created_at, id LIMIT :limit);

-- name: lines
-- The log lines of jobs, oldest first.
SELECT job, CAST(line AS BLOB) FROM perdure_log WHERE job IN (SELECT value FROM json_each(?)) ORDER BY number;

-- name: remove
-- Jobs that are replaced.
DELETE FROM perdure_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: remove_lines
-- Their logs.
DELETE FROM perdure_log WHERE job IN (SELECT value FROM json_each(?));

-- name: insert
-- Jobs as they are.
INSERT INTO perdure_jobs ({columns}, in_lane, index_state, edges_pending) VALUES {values};

-- name: insert_bodies
-- What they came with.
WITH input (id, {body}) AS (VALUES {values})
INSERT INTO perdure_bodies (number, {body})
SELECT job.number, {input_columns} FROM input CROSS JOIN perdure_jobs AS job ON job.id = input.id;

-- name: insert_lines
-- Log lines, oldest first.
INSERT INTO perdure_log (job, line) VALUES {values};

-- name: owners
-- Who holds these keys of scope waiting and active.
SELECT unique_key, id FROM perdure_jobs WHERE holds_key = 1 AND unique_key IN (VALUES {values});

-- name: keys
-- Kept keys after a key, each with its latest owner.
SELECT key, job, ends, max(starts) FROM perdure_keys WHERE :after IS NULL OR key > :after GROUP BY key ORDER BY key LIMIT :limit;

-- name: remove_keys
-- Kept keys that are replaced.
DELETE FROM perdure_keys WHERE key IN (VALUES {values});

-- name: insert_keys
-- Kept keys as they are. When one is over, its next row starts later.
INSERT INTO perdure_keys (key, job, ends, starts) VALUES {values};
