-- name: look
-- What must be known about a server before it is used.
SELECT pg_catalog.pg_backend_pid(), current_setting('server_encoding'), current_setting('transaction_read_only') = 'on',
    pg_catalog.pg_is_in_recovery();

-- name: set
-- Settings of a session, or of a transaction alone.
SELECT pg_catalog.set_config(name, value, %(local)s::boolean)
FROM unnest(%(names)s::text[], %(values)s::text[]) AS given (name, value);

-- name: widen
-- One large message: the driver reads answers in pieces of what it has needed so far, each with a turn of the event loop.
SELECT repeat('x', %(bytes)s::integer);
