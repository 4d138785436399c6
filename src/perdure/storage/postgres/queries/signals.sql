-- name: notify
-- Wake those who listen elsewhere. There is nothing to be kept: the commit waits for no disk, nor do they.
SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('{channel}', %(text)s::text);

-- name: listen
-- Be woken from elsewhere.
LISTEN {channel};

-- name: ask
-- Whether the line still carries.
SELECT 1;
