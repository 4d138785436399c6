-- What all designs share: the clock, the claimed record, partitions by day, and their doors; what differs is filled in.

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

{tables}

-- Put jobs on record: only what differs is sent as arrays. What is as with most jobs is NULL.
CREATE FUNCTION enqueue(given_ids uuid[], given_payloads text[], same_queue text, same_task text)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    present bigint := clock();
BEGIN
    {enqueue}
END $$;

-- Finish the last batch, then claim the next. The mark is where the scan of the lane begins.
CREATE FUNCTION exchange(
    done_ids uuid[], done_attempts integer[], done_stamps bigint[], done_results text[],
    worker text, fresh_stamp bigint, wanted integer, want_queue text, want_task text,
    mark_urgency integer, mark_rank bigint, mark_id uuid)
RETURNS SETOF claimed LANGUAGE plpgsql {planned} AS $$
#variable_conflict use_column
DECLARE
    present bigint := clock();
BEGIN
    IF cardinality(done_ids) > 0 THEN
        {finish}
    END IF;
    IF wanted > 0 THEN
        {claim}
    END IF;
END $$;

-- The scan of a claim alone, for a look at what it reads.
CREATE FUNCTION scan(
    want_queue text, want_task text, wanted integer, mark_urgency integer, mark_rank bigint, mark_id uuid)
RETURNS SETOF tid LANGUAGE plpgsql {planned} AS $$
#variable_conflict use_column
DECLARE
    present bigint := clock();
BEGIN
    RETURN QUERY {best};
END $$;

-- How many jobs are on record as ended, and how many are not ended yet.
CREATE FUNCTION count_ended() RETURNS bigint LANGUAGE sql AS $$ {count_ended} $$;
CREATE FUNCTION count_open() RETURNS bigint LANGUAGE sql AS $$ {count_open} $$;

-- An id as a client would make it: the millisecond, then a number that rises.
CREATE FUNCTION made_id(number bigint) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7000'
        || to_hex(x'8000000000000000'::bigint + number))::uuid;
$$;

-- A backlog that somebody left.
CREATE FUNCTION backlog(jobs integer, same_queue text, same_task text) RETURNS void LANGUAGE sql AS $$
    SELECT enqueue(array_agg(id ORDER BY number),
        array_agg(lpad(number::text, 20, '0') || repeat('x', 80) ORDER BY number), same_queue, same_task)
    FROM (SELECT number, made_id(number) AS id FROM generate_series(0, jobs - 1) AS number) AS made
    GROUP BY number / 10000;
$$;
