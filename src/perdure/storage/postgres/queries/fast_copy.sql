-- name: look
-- The instant, and whether jobs of this queue have to be decided one by one.
SELECT {clock}, EXISTS (SELECT 1 FROM {schema}.queues WHERE name = %(queue)s::text AND (max_depth IS NOT NULL OR fair));

-- name: jobs
-- The jobs' own rows; the payload comes last.
COPY {schema}.jobs (id, {job_columns}, payload) FROM STDIN (FORMAT BINARY);

-- name: waiting
-- The rows of their state.
COPY {schema}.waiting (id, {waiting_columns}) FROM STDIN (FORMAT BINARY);
