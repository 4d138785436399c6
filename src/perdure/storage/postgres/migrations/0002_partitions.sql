-- History in pieces of a day. `jobs` and `outcomes` are cut by the day that an id was made on (ids are UUIDv7); what fits
-- no piece goes to the `_rest`. Nothing depends on the cut but the cost of removing what is old: a piece whose jobs have
-- all ended and been kept long enough is dropped as a whole, which costs nothing, however many they are.
--
-- The functions run with the rights of who migrated, so that a worker's role needs no right to make tables. Each sees to
-- one piece, to be called in a transaction of its own, and gives up after a moment when somebody holds a lock: who
-- waits for a table keeps all others waiting behind him.

CREATE FUNCTION {schema}.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the pieces of the day that is so many days ahead. Gives whether they are there.
CREATE FUNCTION {schema}.make_partition(ahead integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    starts timestamptz := today + ahead * interval '24 hours';
    piece text;
    kind text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('perdure partitions {schema}', 0)) THEN
        RETURN false; -- another worker is at it
    END IF;
    FOREACH kind IN ARRAY ARRAY['jobs', 'outcomes'] LOOP
        piece := kind || '_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
        IF to_regclass('{schema}.' || piece) IS NULL THEN
            EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.%I INCLUDING DEFAULTS)', piece, kind);
            EXECUTE format(
                'ALTER TABLE {schema}.%I ATTACH PARTITION {schema}.%I FOR VALUES FROM (%L) TO (%L)',
                kind, piece, {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'));
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN check_violation OR lock_not_available THEN
    RETURN false; -- jobs of that day are in the rest already, or somebody is busy
END
$$;

-- Drops the oldest pieces that are over and in which nothing has to be kept at `now`. Gives how many jobs they held, NULL
-- when there is nothing to drop, or not now.
CREATE FUNCTION {schema}.drop_partition(now bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    day text;
    starts timestamptz;
    needed boolean;
    gone bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('perdure partitions {schema}', 0)) THEN
        RETURN NULL;
    END IF;
    FOR day IN
        SELECT substr(relname, 10) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = '{schema}.outcomes'::regclass AND relname ~ '^outcomes_[0-9]{8}$'
            AND relname < 'outcomes_' || to_char((today - interval '24 hours') AT TIME ZONE 'UTC', 'YYYYMMDD')
        ORDER BY relname
    LOOP
        starts := to_timestamp(day || ' +00', 'YYYYMMDD TZH');
        CONTINUE WHEN to_regclass('{schema}.jobs_' || day) IS NULL OR {schema}.partition_is_needed(day, starts, now);
        EXECUTE format('LOCK TABLE {schema}.%I, {schema}.%I IN ACCESS EXCLUSIVE MODE', 'jobs_' || day, 'outcomes_' || day);
        -- looked at again: a dead letter may have been retried meanwhile
        CONTINUE WHEN {schema}.partition_is_needed(day, starts, now);
        EXECUTE format('SELECT count(*) FROM {schema}.%I', 'outcomes_' || day) INTO gone;
        DELETE FROM {schema}.log
        WHERE job >= {schema}.first_id(starts) AND job < {schema}.first_id(starts + interval '24 hours');
        EXECUTE format('DROP TABLE {schema}.%I, {schema}.%I', 'jobs_' || day, 'outcomes_' || day);
        RETURN gone;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;

-- Whether a job of this day waits, runs, or is to be kept.
CREATE FUNCTION {schema}.partition_is_needed(day text, starts timestamptz, now bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM {schema}.waiting WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.holds WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.%I WHERE prune_at IS NULL OR prune_at > $3)', 'outcomes_' || day)
        INTO needed
        USING {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'), now;
    RETURN needed;
END
$$;
REVOKE ALL ON FUNCTION {schema}.make_partition(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.drop_partition(bigint) FROM PUBLIC;

-- today and tomorrow; upkeep goes on from there
SELECT {schema}.make_partition(0), {schema}.make_partition(1);
