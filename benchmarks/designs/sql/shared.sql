-- What every design begins with.

-- The time in microseconds.
CREATE FUNCTION clock() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

-- What a claim hands to the worker: the whole record.
CREATE TYPE claimed AS (
    id uuid, created_at bigint, timeout bigint, lease bigint, expires_at bigint, chain_id uuid, urgency integer,
    max_attempts integer, min_version integer, task text, queue text, payload text, backoff text, retention text,
    dead_retention text, run_when text, routing_key text, key text, tenant text, tags text, meta text, unique_key text,
    unique_scope text, after text, limits text, rank bigint, run_at bigint, started_at bigint, stamp bigint,
    settled bigint, leased_until bigint, version integer, attempt integer, failures integer, losses integer,
    suspect boolean, leased_by text, progress text, errors text
);

-- Partitions of a table by the day in which an id (UUIDv7) was made: yesterday, today, tomorrow, and the rest.
CREATE PROCEDURE daily(whole text) LANGUAGE plpgsql AS $$
DECLARE
    today bigint := extract(epoch FROM clock_timestamp())::bigint / 86400;
BEGIN
    FOR day IN today - 1 .. today + 1 LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', whole || day, whole,
            rpad(lpad(to_hex(day * 86400000::bigint), 12, '0'), 32, '0')::uuid,
            rpad(lpad(to_hex((day + 1) * 86400000::bigint), 12, '0'), 32, '0')::uuid);
    END LOOP;
    EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', whole || '_rest', whole);
END $$;
