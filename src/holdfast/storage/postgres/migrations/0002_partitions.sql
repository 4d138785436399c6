-- History in pieces of a day. `jobs` and `outcomes` are cut by the day that an id was made on (ids are UUIDv7); what fits
-- no piece goes to the `_rest`. Nothing depends on the cut but the cost of removing what is old: a piece whose jobs have
-- all ended and been kept long enough is dropped as a whole, which costs nothing, however many they are.
--
-- The function runs with the rights of who migrated, so that a worker's role needs no right to make tables.

CREATE FUNCTION {schema}.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the pieces of today and so many days after it, and drops those that are over and whose jobs need not be kept at
-- `now`. Gives the number of jobs dropped. A piece that somebody holds a lock on is left for the next time.
CREATE FUNCTION {schema}.keep_partitions(now bigint, days integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    starts timestamptz;
    piece text;
    kind text;
    dropped bigint := 0;
    gone bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast partitions ' || '{schema}', 0));
    FOR number IN 0..days LOOP
        starts := today + number * interval '24 hours';
        FOREACH kind IN ARRAY ARRAY['jobs', 'outcomes'] LOOP
            piece := kind || '_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
            IF to_regclass('{schema}.' || piece) IS NULL THEN
                BEGIN
                    EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.%I INCLUDING DEFAULTS)', piece, kind);
                    EXECUTE format(
                        'ALTER TABLE {schema}.%I ATTACH PARTITION {schema}.%I FOR VALUES FROM (%L) TO (%L)',
                        kind, piece, {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'));
                EXCEPTION WHEN check_violation OR lock_not_available THEN
                    NULL; -- jobs of that day are in the rest already, or somebody is busy
                END;
            END IF;
        END LOOP;
    END LOOP;
    FOR piece IN
        SELECT substr(relname, 10) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = '{schema}.outcomes'::regclass AND relname ~ '^outcomes_[0-9]{8}$'
            AND relname < 'outcomes_' || to_char((today - interval '24 hours') AT TIME ZONE 'UTC', 'YYYYMMDD')
        ORDER BY relname
    LOOP
        starts := to_timestamp(piece || ' +00', 'YYYYMMDD TZH');
        gone := {schema}.drop_partition(
            piece, {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'), now);
        dropped := dropped + gone;
    END LOOP;
    RETURN dropped;
END
$$;

-- Drops a piece if nothing in it is needed: gives how many jobs that were.
CREATE FUNCTION {schema}.drop_partition(piece text, first uuid, past uuid, now bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed boolean;
    gone bigint;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM {schema}.waiting WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.holds WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.%I WHERE prune_at IS NULL OR prune_at > $3)', 'outcomes_' || piece)
        INTO needed USING first, past, now;
    IF needed OR to_regclass('{schema}.jobs_' || piece) IS NULL THEN
        RETURN 0;
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE {schema}.%I, {schema}.%I IN ACCESS EXCLUSIVE MODE', 'jobs_' || piece, 'outcomes_' || piece);
        EXECUTE format(
            'SELECT count(*), coalesce(bool_or(prune_at IS NULL OR prune_at > $1), false) FROM {schema}.%I',
            'outcomes_' || piece) INTO gone, needed USING now;
        IF needed OR EXISTS (SELECT 1 FROM {schema}.waiting WHERE id >= first AND id < past)
            OR EXISTS (SELECT 1 FROM {schema}.holds WHERE id >= first AND id < past) THEN
            RETURN 0; -- a dead letter was retried meanwhile
        END IF;
        DELETE FROM {schema}.log WHERE job >= first AND job < past;
        EXECUTE format('DROP TABLE {schema}.%I, {schema}.%I', 'jobs_' || piece, 'outcomes_' || piece);
    EXCEPTION WHEN lock_not_available THEN
        RETURN 0;
    END;
    RETURN gone;
END
$$;
REVOKE ALL ON FUNCTION {schema}.drop_partition(text, uuid, uuid, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.keep_partitions(bigint, integer) FROM PUBLIC;

-- the pieces of today and tomorrow
SELECT {schema}.keep_partitions((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 1);
