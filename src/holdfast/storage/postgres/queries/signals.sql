-- name: notify
-- Wake those who listen elsewhere.
SELECT pg_catalog.pg_notify('{channel}', %(text)s::text);

-- name: listen
-- Be woken from elsewhere.
LISTEN {channel};

-- name: ask
-- Whether the line still carries.
SELECT 1;
