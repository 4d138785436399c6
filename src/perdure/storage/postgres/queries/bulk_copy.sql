-- name: look
-- The instant, and whether what becomes of a job has to be decided job by job in this queue.
SELECT {clock}, EXISTS (SELECT 1 FROM {schema}.queues WHERE name = {queue} AND (max_depth IS NOT NULL OR fair));

-- name: jobs
-- What was said at the enqueue; the payload comes last.
COPY {schema}.jobs (id, {job_columns}, payload) FROM STDIN (FORMAT BINARY);

-- name: waiting
-- The thin rows beside them.
COPY {schema}.waiting (id, {waiting_columns}) FROM STDIN (FORMAT BINARY);
