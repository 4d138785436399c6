-- Jobs that wait for jobs, limits across all workers, fair queues, and the shelf.

-- ---- edges ----------------------------------------------------------------------------------------
-- A job waits for another while their edge is open; a closed one keeps the parent until its child has ended. `finished`:
-- the child runs however its parent ends. An edge is written once and closed once, which stays on its page (fillfactor).
CREATE TABLE {schema}.edges (
    parent uuid NOT NULL,
    child uuid NOT NULL,
    open boolean NOT NULL DEFAULT true,
    finished boolean NOT NULL DEFAULT false,
    PRIMARY KEY (parent, child)
) WITH (fillfactor = 50);
CREATE INDEX edges_child ON {schema}.edges (child, parent);

-- What is to be looked at: the edges of a parent that has ended, or those of a new child, behind `mark`. `unplaced`: the
-- child has no share of its fair queue yet.
CREATE TABLE {schema}.unsettled (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent uuid,
    child uuid,
    mark uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    unplaced boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX unsettled_unplaced ON {schema}.unsettled (number) WHERE unplaced;

-- `followed`: a job waits, or has waited, for this one. `next_id`: the job that goes on with its chain. `gate`: a digest of
-- the limits that a job runs under. `limited`: the queue of a job under limits, to be told of when its hold is given up.
ALTER TABLE {schema}.waiting ADD COLUMN followed boolean, ADD COLUMN gate uuid;
ALTER TABLE {schema}.holds ADD COLUMN followed boolean, ADD COLUMN limited text COLLATE "C";
ALTER TABLE {schema}.outcomes ADD COLUMN followed boolean, ADD COLUMN next_id uuid;

-- ---- limits ---------------------------------------------------------------------------------------
-- Jobs under limits that are ready wait here, in lanes within their gate.
CREATE INDEX waiting_parked ON {schema}.waiting (gate, queue, task, route, urgency, rank, id)
    WHERE state = 'ready' AND parked AND NOT suspect;

-- The lanes that hold parked jobs, and why they are closed: by the key that is used up, until an instant if that is a rate.
-- Only claimers write here, one at a time; all others leave word in limit_news.
CREATE TABLE {schema}.limit_gates (
    number bigint GENERATED ALWAYS AS IDENTITY,
    most bigint,                         -- that may start at once at best
    opens_at bigint,
    closed_at bigint,
    gate uuid NOT NULL,
    closed_by uuid,                      -- a digest of the key
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    limits text COLLATE "C" NOT NULL,
    PRIMARY KEY (gate, queue, task, route)
);
CREATE INDEX limit_gates_open ON {schema}.limit_gates (number) WHERE closed_by IS NULL;
CREATE INDEX limit_gates_full ON {schema}.limit_gates (closed_by, closed_at) WHERE closed_by IS NOT NULL AND opens_at IS NULL;
CREATE INDEX limit_gates_later ON {schema}.limit_gates (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX limit_gates_rated ON {schema}.limit_gates (closed_at) WHERE opens_at IS NOT NULL;

-- Word for claimers: a job was parked in a lane, or a hold of a limited job was given up.
CREATE TABLE {schema}.limit_news (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stamp bigint,
    gate uuid,
    job uuid,
    queue text COLLATE "C",
    task text COLLATE "C",
    route text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX limit_news_given_up ON {schema}.limit_news (number) WHERE job IS NOT NULL;

-- The holds of limited jobs by the keys that they use. One column in each index, so that no other can serve a search.
CREATE TABLE {schema}.limit_slots (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stamp bigint NOT NULL,
    key uuid NOT NULL,
    job uuid NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limit_slots_key ON {schema}.limit_slots (key);
CREATE INDEX limit_slots_job ON {schema}.limit_slots (job);

-- The claims of the last window under a key with a rate: at this instant, so many. They count until then.
CREATE TABLE {schema}.limit_starts (
    at bigint NOT NULL,
    times bigint NOT NULL,
    until bigint NOT NULL,
    key uuid NOT NULL,
    PRIMARY KEY (key, at)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX limit_starts_until ON {schema}.limit_starts (until);

-- Keys that may have room while gates are closed by them.
CREATE TABLE {schema}.limit_room (key uuid NOT NULL PRIMARY KEY);

-- ---- fair queues ----------------------------------------------------------------------------------
-- The rank of a tenant's last job in a queue and priority. `tenant`: = and its name; '' is the queue's floor.
CREATE TABLE {schema}.fair_accounts (
    rank bigint NOT NULL,
    priority integer NOT NULL,
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, priority, tenant)
);

-- ---- the shelf ------------------------------------------------------------------------------------
CREATE TABLE {schema}.shelf (
    version bigint NOT NULL,
    due_at bigint,
    job uuid,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    text text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX shelf_due ON {schema}.shelf (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX shelf_job ON {schema}.shelf (job, kind, name) WHERE job IS NOT NULL;

-- ---- pieces of the history ------------------------------------------------------------------------
-- As before; what belongs to the jobs goes with them, and who is followed by a job that has not ended stays.
CREATE OR REPLACE FUNCTION {schema}.drop_partition(now bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    day text;
    starts timestamptz;
    first uuid;
    beyond uuid;
    gone bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast partitions {schema}', 0)) THEN
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
        -- looked at again: a dead letter may have been retried, or got a follower, meanwhile
        CONTINUE WHEN {schema}.partition_is_needed(day, starts, now);
        EXECUTE format('SELECT count(*) FROM {schema}.%I', 'outcomes_' || day) INTO gone;
        first := {schema}.first_id(starts);
        beyond := {schema}.first_id(starts + interval '24 hours');
        DELETE FROM {schema}.log WHERE job >= first AND job < beyond;
        DELETE FROM {schema}.shelf WHERE job >= first AND job < beyond;
        DELETE FROM {schema}.edges WHERE parent >= first AND parent < beyond;
        DELETE FROM {schema}.edges WHERE child >= first AND child < beyond;
        EXECUTE format('DROP TABLE {schema}.%I, {schema}.%I', 'jobs_' || day, 'outcomes_' || day);
        RETURN gone;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;

-- Whether a job of this day waits, runs, is to be kept, or is needed by one that follows it.
CREATE OR REPLACE FUNCTION {schema}.partition_is_needed(day text, starts timestamptz, now bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT 1 FROM {schema}.waiting WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.holds WHERE id >= $1 AND id < $2)
            OR EXISTS (SELECT 1 FROM {schema}.%I WHERE prune_at IS NULL OR prune_at > $3)
            OR EXISTS (
                SELECT 1 FROM {schema}.edges WHERE parent >= $1 AND parent < $2 AND (
                    open OR EXISTS (SELECT 1 FROM {schema}.waiting WHERE id = child)
                    OR EXISTS (SELECT 1 FROM {schema}.holds WHERE id = child AND NOT ended)))', 'outcomes_' || day)
        INTO needed
        USING {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'), now;
    RETURN needed;
END
$$;
