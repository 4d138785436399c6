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
CREATE TABLE {schema}.unresolved (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent uuid,
    child uuid,
    mark uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    unplaced boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX unresolved_unplaced ON {schema}.unresolved (number) WHERE unplaced;

-- `followed`: a job waits, or has waited, for this one. `next_id`: the job that goes on with its chain. `gate`: a digest of
-- the limits that a job runs under. `limited`: the queue of a job under limits, to be told of when its hold is given up.
-- `slot`: the key that it uses (a digest), if that is the only one; of those with several, the keys are in limit_slots.
ALTER TABLE {schema}.waiting ADD COLUMN followed boolean, ADD COLUMN gate uuid;
ALTER TABLE {schema}.holds ADD COLUMN followed boolean, ADD COLUMN slot uuid, ADD COLUMN limited text COLLATE "C";
ALTER TABLE {schema}.outcomes ADD COLUMN followed boolean, ADD COLUMN next_id uuid;

-- ---- limits ---------------------------------------------------------------------------------------
-- Jobs under limits that are ready wait here, in lanes within their gate.
CREATE INDEX waiting_parked ON {schema}.waiting (gate, queue, task, route, urgency, rank, id)
    WHERE state = 'ready' AND parked AND NOT suspect;

-- What runs under a key. No renewal writes this column, so they stay on their page.
CREATE INDEX holds_slot ON {schema}.holds (slot) WHERE slot IS NOT NULL;

-- The lanes that hold parked jobs, and why they are closed: by the key that is used up, until an instant if that is a rate.
-- `most` is NULL until the limits have been read. Only claimers write here, one at a time; all others leave word in
-- limit_news.
CREATE TABLE {schema}.limit_gates (
    number bigint GENERATED ALWAYS AS IDENTITY,
    most bigint,                         -- that may start at once at best
    opens_at bigint,
    closed_at bigint,
    gate uuid NOT NULL,
    key uuid,                            -- a digest of the key, if there is only one and it has no rate
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

-- Word for claimers: a job was parked in a lane, or a hold was given up: of a key, or of a job with several.
CREATE TABLE {schema}.limit_news (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stamp bigint,
    gate uuid,
    key uuid,
    job uuid,
    queue text COLLATE "C",
    task text COLLATE "C",
    route text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX limit_news_given_up ON {schema}.limit_news (number) WHERE gate IS NULL;

-- The holds of jobs with several keys, by each of them. One column in each index, so that no other can serve a search.
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

-- ---- turns ----------------------------------------------------------------------------------------
-- Claimers of limited jobs take turns, until their transaction ends. What they read in a turn has to be read by statements
-- of its own: those of a function that is volatile see what others committed while it waited.

-- Takes a turn and hears the news, first those of holds that were given up: they leave their slots, and the keys of those
-- may have room for gates that are closed by them. Lanes that were not known are from now on. Then gates are opened. Gives
-- how many news there were.
CREATE FUNCTION {schema}.limit_hear(at bigint, bound integer, look integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    heard bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('perdure limits {schema}', 0));
    WITH news AS (
        DELETE FROM {schema}.limit_news
        WHERE number = ANY(ARRAY(
            (SELECT number FROM {schema}.limit_news WHERE gate IS NULL ORDER BY number LIMIT bound)
            UNION ALL
            (SELECT number FROM {schema}.limit_news ORDER BY number LIMIT bound)))
        RETURNING stamp, gate, key, job, queue, task, route
    ),
    freed AS (
        DELETE FROM {schema}.limit_slots WHERE ctid = ANY(ARRAY(
            SELECT slot.place FROM news CROSS JOIN LATERAL (
                SELECT ctid AS place FROM {schema}.limit_slots
                WHERE limit_slots.job = news.job AND limit_slots.stamp = news.stamp OFFSET 0) AS slot))
        RETURNING key
    ),
    roomy AS (
        INSERT INTO {schema}.limit_room (key)
        SELECT DISTINCT free.key
        FROM (SELECT key FROM freed UNION ALL SELECT key FROM news WHERE key IS NOT NULL) AS free CROSS JOIN LATERAL (
            SELECT 1 FROM {schema}.limit_gates
            WHERE limit_gates.closed_by = free.key AND limit_gates.opens_at IS NULL LIMIT 1) AS closed
        ON CONFLICT (key) DO NOTHING
    ),
    known AS (
        INSERT INTO {schema}.limit_gates (gate, queue, task, route, limits)
        SELECT lane.gate, lane.queue, lane.task, lane.route, parked.limits
        FROM (SELECT DISTINCT gate, queue, task, route FROM news WHERE gate IS NOT NULL) AS lane
            CROSS JOIN LATERAL (
                SELECT (SELECT jobs.limits FROM {schema}.jobs WHERE jobs.id = w.id) AS limits FROM {schema}.waiting AS w
                WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                    AND w.state = 'ready' AND w.parked AND NOT w.suspect
                ORDER BY w.urgency, w.rank, w.id LIMIT 1) AS parked
        ON CONFLICT (gate, queue, task, route) DO NOTHING
    )
    SELECT count(*) INTO heard FROM news;
    PERFORM {schema}.limit_open(at, bound, look);
    RETURN heard;
END
$$;

-- Opens gates that a rate closed until now (all of those, if the clock has gone back behind the moment at which they were
-- closed), and of those that are closed by keys which may have room, the ones that have been closed for longest. Gives how
-- many.
CREATE FUNCTION {schema}.limit_open(at bigint, bound integer, look integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    instant bigint := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    opened_now bigint;
BEGIN
    WITH roomy AS MATERIALIZED (SELECT key FROM {schema}.limit_room LIMIT look),
    opening AS MATERIALIZED (
        SELECT roomy.key, full_gate.place FROM roomy LEFT JOIN LATERAL (
            SELECT ctid AS place FROM {schema}.limit_gates
            WHERE limit_gates.closed_by = roomy.key AND limit_gates.opens_at IS NULL
            ORDER BY limit_gates.closed_at LIMIT look) AS full_gate ON true
    ),
    idle AS (DELETE FROM {schema}.limit_room WHERE key = ANY(ARRAY(SELECT key FROM opening WHERE place IS NULL))),
    opened AS (
        UPDATE {schema}.limit_gates SET closed_by = NULL, opens_at = NULL WHERE ctid = ANY(ARRAY(
            (SELECT place FROM opening WHERE place IS NOT NULL)
            UNION ALL
            (SELECT ctid FROM {schema}.limit_gates WHERE opens_at <= instant LIMIT bound)
            UNION ALL
            (SELECT ctid FROM {schema}.limit_gates WHERE opens_at IS NOT NULL AND closed_at > instant LIMIT bound)))
        RETURNING 1
    )
    SELECT count(*) INTO opened_now FROM opened;
    RETURN opened_now;
END
$$;

-- Takes a turn, unless there is nothing to be found, and gives the open lanes that are wanted, each with what runs under its
-- key, how many jobs were found there (as many as could pass, and one more) and the places of those that pass: each job has
-- its number under its key, after those that run, and passes if the limit reaches so far. It is simple where the lanes are
-- few, each has one key without a rate, none that is wanted waits for a rate, and none is left to be opened; where it is not,
-- no jobs are looked for. `unheard`: there may be more news; `limits`: what nobody has read yet.
CREATE FUNCTION {schema}.limit_turn(
    of_queues text[], of_tasks text[], of_route text, by_version integer, wanted integer, at bigint, bound integer,
    look integer)
RETURNS TABLE (
    simple boolean, unheard boolean, number bigint, gate uuid, key uuid, most bigint, running bigint, limits text,
    jobs bigint, places tid[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    instant bigint := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    heard bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM {schema}.limit_news) AND NOT EXISTS (SELECT 1 FROM {schema}.limit_room)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at <= instant)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at IS NOT NULL AND closed_at > instant)
        AND NOT EXISTS (
            SELECT 1 FROM {schema}.limit_gates AS w
            WHERE w.closed_by IS NULL AND (of_queues IS NULL OR w.queue = ANY(of_queues))
                AND (of_tasks IS NULL OR w.task = ANY(of_tasks)) AND (of_route IS NULL OR w.route = of_route)
                AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused))
        AND (
            SELECT count(*) < look AND count(*) FILTER (
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)) = 0
            FROM (SELECT * FROM {schema}.limit_gates WHERE opens_at IS NOT NULL LIMIT look) AS w)
    THEN
        RETURN;
    END IF;
    heard := {schema}.limit_hear(at, bound, look);
    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT w.* FROM {schema}.limit_gates AS w
        WHERE w.closed_by IS NULL AND (of_queues IS NULL OR w.queue = ANY(of_queues))
            AND (of_tasks IS NULL OR w.task = ANY(of_tasks)) AND (of_route IS NULL OR w.route = of_route)
            AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused)
        ORDER BY w.number LIMIT look
    ),
    rated AS MATERIALIZED (
        SELECT w.queue, w.task, w.route FROM {schema}.limit_gates AS w WHERE w.opens_at IS NOT NULL LIMIT look
    ),
    simply AS MATERIALIZED (
        SELECT count(*) = count(lane.key) AND count(*) < look AND (SELECT count(*) < look FROM rated)
            AND NOT EXISTS (
                SELECT 1 FROM rated AS w
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)
                    AND NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.name = w.queue AND queues.paused))
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.limit_room CROSS JOIN LATERAL (
                    SELECT 1 FROM {schema}.limit_gates
                    WHERE limit_gates.closed_by = limit_room.key AND limit_gates.opens_at IS NULL LIMIT 1) AS still) AS so
        FROM lane
    ),
    used AS MATERIALIZED (
        SELECT every.key, (SELECT count(*) FROM {schema}.holds WHERE holds.slot = every.key)
            + (SELECT count(*) FROM {schema}.limit_slots WHERE limit_slots.key = every.key) AS running
        FROM (SELECT DISTINCT lane.key FROM lane WHERE (SELECT so FROM simply)) AS every
    ),
    best AS MATERIALIZED (
        SELECT lane.number, lane.most, found.*,
            used.running + row_number() OVER (PARTITION BY lane.key ORDER BY found.urgency, found.rank, found.id) AS would_run
        FROM lane JOIN used ON used.key = lane.key CROSS JOIN LATERAL (
            SELECT w.ctid AS place, w.urgency, w.rank, w.id FROM {schema}.waiting AS w
            WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                AND w.state = 'ready' AND w.parked AND NOT w.suspect AND coalesce(w.min_version, 1) <= by_version
                AND (w.expires_at IS NULL OR w.expires_at > instant OR w.started_at IS NOT NULL)
            ORDER BY w.urgency, w.rank, w.id LIMIT least(greatest(lane.most - used.running, 0), wanted) + 1) AS found
    ),
    passing AS (
        SELECT best.number, best.place FROM best WHERE best.would_run <= best.most
        ORDER BY best.urgency, best.rank, best.id LIMIT wanted
    )
    SELECT simply.so, heard >= bound, lane.number, lane.gate, lane.key, lane.most, used.running,
        CASE WHEN lane.most IS NULL THEN lane.limits END, coalesce(seen.jobs, 0), chosen.places
    FROM simply LEFT JOIN lane ON true LEFT JOIN used ON used.key = lane.key
        LEFT JOIN (SELECT best.number, count(*) AS jobs FROM best GROUP BY 1) AS seen ON seen.number = lane.number
        LEFT JOIN (
            SELECT passing.number, array_agg(passing.place) AS places FROM passing GROUP BY 1
        ) AS chosen ON chosen.number = lane.number;
END
$$;

-- Closes gates whose key is used up, which then has no room, and forgets those of the given lanes that hold no jobs.
CREATE FUNCTION {schema}.limit_shut(used_up bigint[], empty bigint[], instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(used_up) > 0 THEN
        WITH shut AS (
            UPDATE {schema}.limit_gates SET closed_by = key, closed_at = instant
            WHERE closed_by IS NULL AND number = ANY(used_up) RETURNING key
        )
        DELETE FROM {schema}.limit_room WHERE key = ANY(ARRAY(SELECT key FROM shut));
    END IF;
    IF cardinality(empty) > 0 THEN
        DELETE FROM {schema}.limit_gates AS lane
        WHERE lane.number = ANY(empty) AND lane.closed_by IS NULL AND NOT EXISTS (
            SELECT 1 FROM {schema}.waiting AS w
            WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                AND w.state = 'ready' AND w.parked AND NOT w.suspect
            OFFSET 0);
    END IF;
END
$$;

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
