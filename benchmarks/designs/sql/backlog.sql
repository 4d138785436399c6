-- What every design ends with: many jobs made by the server itself.

-- An id as a client would make it: the millisecond, then a number that rises.
CREATE FUNCTION made_id(number bigint) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7000'
        || to_hex(x'8000000000000000'::bigint + number))::uuid;
$$;

-- A backlog that somebody left.
CREATE FUNCTION backlog(jobs integer, same_queue text, same_task text) RETURNS void LANGUAGE sql AS $$
    SELECT enqueue(array_agg(id ORDER BY number), array_agg(lpad(number::text, 20, '0') || repeat('x', 80) ORDER BY number),
        same_queue, same_task)
    FROM (SELECT number, made_id(number) AS id FROM generate_series(0, jobs - 1) AS number) AS made
    GROUP BY number / 10000;
$$;
