-- The schema of a store. A job's own row in `jobs` is written once. Its state is in a small row beside it, in one table at a time:
--   waiting    blocked, scheduled or ready               (deleted by the claim)
--   holds      running, or ended while code still runs   (deleted when the holder reports)
--   outcomes   ended                                     (only inserted)
-- Instants and durations are microseconds. NULL means the value that most jobs have, and takes no space; queries/record.sql
-- says which value that is. Texts that are compared use the C collation: equal bytes, and an order that no library update changes.

CREATE TABLE {schema}.jobs (
    created_at bigint NOT NULL,
    run_at bigint,                       -- the first one, NULL: at once; a later one is in the row of the state
    lease bigint NOT NULL DEFAULT 60000000,
    timeout bigint DEFAULT 300000000,
    max_attempts bigint DEFAULT 3,
    expires_at bigint,
    priority integer NOT NULL DEFAULT 0,
    min_version integer,
    id uuid NOT NULL,
    chain_id uuid,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL DEFAULT 'default',
    payload text COLLATE "C" NOT NULL,
    backoff text COLLATE "C",
    retention text COLLATE "C",
    dead_retention text COLLATE "C",
    run_when text COLLATE "C",
    key text COLLATE "C",
    tenant text COLLATE "C",
    routing_key text COLLATE "C",
    tags text COLLATE "C",
    meta text COLLATE "C",
    unique_key text COLLATE "C",
    unique_scope text COLLATE "C",
    after text COLLATE "C",
    limits text COLLATE "C",
    errors text COLLATE "C",             -- of failed attempts: the only column that is ever written again
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- without id, so that only the primary key can serve a search for an id, even in a partition that is still empty
CREATE INDEX jobs_created ON {schema}.jobs (created_at);
CREATE INDEX jobs_key ON {schema}.jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_chain ON {schema}.jobs (chain_id) WHERE chain_id IS NOT NULL;
CREATE TABLE {schema}.jobs_rest PARTITION OF {schema}.jobs DEFAULT;

-- `urgency` is -1 - priority, so that the claim order rises in every column. `route` is '' without a routing key, else = and the
-- key. `held_key`: the unique key that the job occupies; `key_waits`: only until it is claimed. `followed`: another job waits for
-- this one, or did. `gate`: a digest of the job's limits. `in_paused_queue`: a claim met the job while its queue was paused.
-- The defaults serve a COPY that leaves out what most jobs have.
CREATE TABLE {schema}.waiting (
    rank bigint NOT NULL,
    run_at bigint,
    expires_at bigint,
    started_at bigint,
    accepted_stamp bigint,
    urgency integer NOT NULL DEFAULT -1,
    min_version integer,
    version integer,
    attempt integer,
    failures integer,
    losses integer,
    waits integer,
    id uuid NOT NULL PRIMARY KEY,
    gate uuid,
    parked boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    key_waits boolean NOT NULL DEFAULT false,
    followed boolean,
    in_paused_queue boolean,
    state text COLLATE "C" NOT NULL DEFAULT 'ready',
    queue text COLLATE "C" NOT NULL DEFAULT 'default',
    task text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL DEFAULT '',
    held_key text COLLATE "C",
    reason text COLLATE "C",
    progress text COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000
);
-- What can be claimed, in lanes. It begins with two hashes, which compare faster than three texts: one of the queue, so that one
-- queue can be searched, and one of task and route. The names are compared in the row.
CREATE INDEX waiting_ready ON {schema}.waiting (
    hashtextextended(queue, 0), hashtextextended(task, hashtextextended(route, 0)), urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect;
-- Lines: the ready jobs of one task and route over all queues. Where there are very many queues, a claim for every queue finds
-- the lanes of the best jobs here. The jobs of paused queues leave it when a claim meets them.
CREATE INDEX waiting_line ON {schema}.waiting (hashtextextended(task, hashtextextended(route, 0)), urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect AND in_paused_queue IS NOT TRUE;
CREATE INDEX waiting_in_paused_queue ON {schema}.waiting (queue) WHERE in_paused_queue;
CREATE INDEX waiting_aside ON {schema}.waiting (queue) WHERE state <> 'ready' OR parked OR suspect;
CREATE INDEX waiting_suspect ON {schema}.waiting (urgency, rank, id) WHERE state = 'ready' AND suspect;
CREATE INDEX waiting_due ON {schema}.waiting (run_at, id) WHERE state = 'scheduled';
CREATE INDEX waiting_expiry ON {schema}.waiting (expires_at, id) WHERE expires_at IS NOT NULL;
-- ready jobs under limits, in lanes within their gate
CREATE INDEX waiting_parked ON {schema}.waiting (gate, queue, task, route, urgency, rank, id)
    WHERE state = 'ready' AND parked AND NOT suspect;

-- Few indexes: a renewal then touches the row alone, and there are only as many rows as running jobs. `limited`: the queue of a
-- job under limits, to be signalled when its hold is released. `slot`: a digest of the limit key that the job uses, if it uses
-- only one; the keys of the others are in limit_slots.
CREATE TABLE {schema}.holds (
    stamp bigint NOT NULL,
    leased_until bigint NOT NULL,
    lease bigint NOT NULL,
    run_at bigint,
    rank bigint,
    started_at bigint,
    accepted_stamp bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    failures integer,
    losses integer,
    waits integer,
    id uuid NOT NULL PRIMARY KEY,
    slot uuid,
    ended boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    followed boolean,
    leased_by text COLLATE "C" NOT NULL,
    limited text COLLATE "C",
    held_key text COLLATE "C",
    reason text COLLATE "C",
    progress text COLLATE "C"
) WITH (
    fillfactor = 50, -- room for renewals on the same page
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000
);
-- What runs under a limit key. No renewal writes this column, so rows stay on their page.
CREATE INDEX holds_slot ON {schema}.holds (slot) WHERE slot IS NOT NULL;

-- `created_at` is set for dead letters only and `task` for counted jobs only, for their indexes. `next_id`: the job that continues
-- this one's chain.
CREATE TABLE {schema}.outcomes (
    created_at bigint,
    finished_at bigint,
    prune_at bigint,
    keep_last bigint,
    run_at bigint,
    rank bigint,
    started_at bigint,
    accepted_stamp bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    failures integer,
    losses integer,
    waits integer,
    id uuid NOT NULL,
    next_id uuid,
    hidden boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    followed boolean,
    task text COLLATE "C",
    state text COLLATE "C" NOT NULL,
    result text COLLATE "C",
    held_key text COLLATE "C",
    reason text COLLATE "C",
    progress text COLLATE "C",
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX outcomes_brief ON {schema}.outcomes (prune_at) WHERE prune_at < finished_at + 86400000000;
CREATE INDEX outcomes_counted ON {schema}.outcomes (task, finished_at) WHERE keep_last IS NOT NULL;
CREATE INDEX outcomes_dead ON {schema}.outcomes (created_at, id) WHERE state = 'dead';
CREATE TABLE {schema}.outcomes_rest PARTITION OF {schema}.outcomes DEFAULT;

-- The job that occupies a unique key of scope waiting or active.
CREATE TABLE {schema}.held_keys (
    key text COLLATE "C" NOT NULL PRIMARY KEY,
    job uuid NOT NULL
);

-- Unique keys of scope any (ends is NULL) and window. A key whose window is over gets a new row, which starts where the last one
-- ended: of two callers that find it over at once, only one can write that row.
CREATE TABLE {schema}.kept_keys (
    key text COLLATE "C" NOT NULL,
    starts bigint NOT NULL,
    ends bigint,
    job uuid NOT NULL,
    PRIMARY KEY (key, starts)
);
CREATE INDEX kept_keys_ends ON {schema}.kept_keys (ends) WHERE ends IS NOT NULL;

CREATE TABLE {schema}.log (
    number bigint GENERATED ALWAYS AS IDENTITY,
    job uuid NOT NULL,
    line text COLLATE "C" NOT NULL,
    PRIMARY KEY (job, number)
);

CREATE TABLE {schema}.queues (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    max_depth bigint,
    on_full text COLLATE "C" NOT NULL DEFAULT 'reject',
    drop_below bigint,
    fair boolean NOT NULL DEFAULT false,
    weights text COLLATE "C"
);
CREATE INDEX queues_paused ON {schema}.queues (name) WHERE paused;

CREATE TABLE {schema}.workers (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    running bigint NOT NULL,
    about text COLLATE "C" NOT NULL
);

-- kv entries: named texts under guards.
CREATE TABLE {schema}.kv (
    version bigint NOT NULL,
    due_at bigint,
    job uuid,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    text text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX kv_due ON {schema}.kv (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX kv_job ON {schema}.kv (job, kind, name) WHERE job IS NOT NULL;

-- The rank of a tenant's last job in a queue and priority. `tenant`: = and its name; '' is the queue's floor.
CREATE TABLE {schema}.fair_accounts (
    rank bigint NOT NULL,
    priority integer NOT NULL,
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, priority, tenant)
);

-- Rows that could not be read, as they were found: a JSON object each. `place` is the table, `id` the job or another name of the
-- row, `fields` a JSON array.
CREATE TABLE {schema}.unreadable (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    fields text COLLATE "C" NOT NULL,
    raw text COLLATE "C" NOT NULL
);
-- a hash, because the name of a row that is no job may be of any length
CREATE INDEX unreadable_id ON {schema}.unreadable USING hash (id);

-- The strings in a JSON array; none, if the text is something else. A cast would fail for all rows because of one.
CREATE FUNCTION {schema}.strings_in(value text) RETURNS SETOF text LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT json_array_elements_text(value::json);
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
    RETURN;
END
$$;

-- ---- edges ----------------------------------------------------------------------------------------
-- A child waits for its parent while their edge is open; a closed edge keeps the parent until the child has ended. `finished`: the
-- child runs however its parent ends. An edge is written once and closed once, which stays on its page (fillfactor).
CREATE TABLE {schema}.edges (
    parent uuid NOT NULL,
    child uuid NOT NULL,
    open boolean NOT NULL DEFAULT true,
    finished boolean NOT NULL DEFAULT false,
    PRIMARY KEY (parent, child)
) WITH (fillfactor = 50);
CREATE INDEX edges_child ON {schema}.edges (child, parent);

-- Edges to resolve: those of a parent that has ended, or of a new child, behind `mark`. `unranked`: the child has no rank in its
-- fair queue yet.
CREATE TABLE {schema}.unresolved (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent uuid,
    child uuid,
    mark uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    unranked boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX unresolved_unranked ON {schema}.unresolved (number) WHERE unranked;

-- ---- limits ---------------------------------------------------------------------------------------
-- The lanes that hold parked jobs. `urgency`, `rank` and `head` are the claim order of the lane's best job, or an earlier one.
-- `closed_by` is the key that is used up, and `opens_at` the instant at which a rate opens the gate again. `most` is NULL until the
-- limits have been parsed. Only claimers write here, one at a time, and whoever pauses or resumes a queue, who waits for the same
-- lock. All others insert into limit_notices.
CREATE TABLE {schema}.limit_gates (
    most bigint,                         -- that may start at once at best
    opens_at bigint,
    closed_at bigint,
    rank bigint NOT NULL,
    urgency integer NOT NULL,
    head uuid NOT NULL,
    gate uuid NOT NULL,
    key uuid,                            -- a digest of the key, if there is only one and it has no rate
    closed_by uuid,                      -- a digest of the key
    paused boolean NOT NULL,             -- an open gate of a paused queue
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    limits text COLLATE "C" NOT NULL,
    PRIMARY KEY (gate, queue, task, route)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- Open gates in claim order, over all queues and within a queue: a claim reads only the best ones.
CREATE INDEX limit_gates_line ON {schema}.limit_gates (
    hashtextextended(task, hashtextextended(route, 0)), urgency, rank, head) WHERE closed_by IS NULL AND NOT paused;
CREATE INDEX limit_gates_lane ON {schema}.limit_gates (
    hashtextextended(queue, 0), hashtextextended(task, hashtextextended(route, 0)), urgency, rank, head)
    WHERE closed_by IS NULL AND NOT paused;
CREATE INDEX limit_gates_paused ON {schema}.limit_gates (queue) WHERE paused;
CREATE INDEX limit_gates_full ON {schema}.limit_gates (closed_by, closed_at) WHERE closed_by IS NOT NULL AND opens_at IS NULL;
CREATE INDEX limit_gates_later ON {schema}.limit_gates (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX limit_gates_rated ON {schema}.limit_gates (closed_at) WHERE opens_at IS NOT NULL;

-- Notices for claimers: a job was parked in a lane, or a hold was released: of a key, or of a job with several keys.
CREATE TABLE {schema}.limit_notices (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stamp bigint,
    gate uuid,
    key uuid,
    job uuid,
    queue text COLLATE "C",
    task text COLLATE "C",
    route text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limit_notices_released ON {schema}.limit_notices (number) WHERE gate IS NULL;

-- The holds of jobs with several keys, by each key. One column in each index, so that no other can serve a search.
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

-- Keys that may have free slots while gates are closed by them.
CREATE TABLE {schema}.limit_free_keys (key uuid NOT NULL PRIMARY KEY);

-- Claimers of limited jobs take turns, until their transaction ends. What they read in a turn has to be read by statements of its
-- own: the statements of a volatile function see what others committed while it waited.

-- Takes a turn and reads notices, first those of released holds: these leave their slots, and gates that are closed by the keys
-- of those slots may open. Then it adds new lanes, moves the heads of known ones forward to better jobs, and reopens gates.
-- Returns how many notices it read.
CREATE FUNCTION {schema}.limit_read_notices(at bigint, bound integer, look integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    notices_read bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('perdure limits {schema}', 0));
    WITH notices AS (
        DELETE FROM {schema}.limit_notices
        WHERE number = ANY(ARRAY(
            (SELECT number FROM {schema}.limit_notices WHERE gate IS NULL ORDER BY number LIMIT bound)
            UNION ALL
            (SELECT number FROM {schema}.limit_notices ORDER BY number LIMIT bound)))
        RETURNING stamp, gate, key, job, queue, task, route
    ),
    freed AS (
        DELETE FROM {schema}.limit_slots WHERE ctid = ANY(ARRAY(
            SELECT slot.place FROM notices CROSS JOIN LATERAL (
                SELECT ctid AS place FROM {schema}.limit_slots
                WHERE limit_slots.job = notices.job AND limit_slots.stamp = notices.stamp OFFSET 0) AS slot))
        RETURNING key
    ),
    free AS (
        INSERT INTO {schema}.limit_free_keys (key)
        SELECT DISTINCT released.key
        FROM (SELECT key FROM freed UNION ALL SELECT key FROM notices WHERE key IS NOT NULL) AS released CROSS JOIN LATERAL (
            SELECT 1 FROM {schema}.limit_gates
            WHERE limit_gates.closed_by = released.key AND limit_gates.opens_at IS NULL LIMIT 1) AS closed
        ON CONFLICT (key) DO NOTHING
    ),
    known AS (
        INSERT INTO {schema}.limit_gates (gate, queue, task, route, limits, urgency, rank, head, paused)
        SELECT lane.gate, lane.queue, lane.task, lane.route, parked.limits, parked.urgency, parked.rank, parked.id,
            (SELECT queues.paused FROM {schema}.queues WHERE queues.name = lane.queue) IS TRUE
        FROM (SELECT DISTINCT gate, queue, task, route FROM notices WHERE gate IS NOT NULL) AS lane
            CROSS JOIN LATERAL (
                SELECT w.urgency, w.rank, w.id,
                    (SELECT jobs.limits FROM {schema}.jobs WHERE jobs.id = w.id) AS limits FROM {schema}.waiting AS w
                WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                    AND w.state = 'ready' AND w.parked AND NOT w.suspect
                ORDER BY w.urgency, w.rank, w.id LIMIT 1) AS parked
        ON CONFLICT (gate, queue, task, route) DO UPDATE
            SET urgency = excluded.urgency, rank = excluded.rank, head = excluded.head
            WHERE (excluded.urgency, excluded.rank, excluded.head) < (limit_gates.urgency, limit_gates.rank, limit_gates.head)
    )
    SELECT count(*) INTO notices_read FROM notices;
    PERFORM {schema}.limit_reopen(at, bound, look);
    RETURN notices_read;
END
$$;

-- Opens gates that a rate closed until now (all gates closed by rates, if the clock has gone back behind the moment at which they
-- were closed), and of those that are closed by keys which may have free slots, the ones that have been closed for longest.
-- Returns how many.
CREATE FUNCTION {schema}.limit_reopen(at bigint, bound integer, look integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    instant bigint := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    opened_now bigint;
BEGIN
    WITH free AS MATERIALIZED (SELECT key FROM {schema}.limit_free_keys LIMIT look),
    opening AS MATERIALIZED (
        SELECT free.key, full_gate.place FROM free LEFT JOIN LATERAL (
            SELECT ctid AS place FROM {schema}.limit_gates
            WHERE limit_gates.closed_by = free.key AND limit_gates.opens_at IS NULL
            ORDER BY limit_gates.closed_at LIMIT look) AS full_gate ON true
    ),
    idle AS (DELETE FROM {schema}.limit_free_keys WHERE key = ANY(ARRAY(SELECT key FROM opening WHERE place IS NULL))),
    opened AS (
        UPDATE {schema}.limit_gates SET closed_by = NULL, opens_at = NULL,
            paused = (SELECT queues.paused FROM {schema}.queues WHERE queues.name = limit_gates.queue) IS TRUE
        WHERE ctid = ANY(ARRAY(
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

-- The best of the open gates that are wanted, in the claim order of their heads: one seek for each line or lane, and then only
-- the gates that are returned, however many there are.
CREATE FUNCTION {schema}.limit_best_gates(of_queues text[], of_tasks text[], of_route text, gates integer)
RETURNS TABLE (
    place tid, urgency integer, rank bigint, head uuid, most bigint, gate uuid, key uuid, queue text, task text, route text,
    limits text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF of_queues IS NULL THEN
        RETURN QUERY
        WITH RECURSIVE line AS (
            (SELECT w.task, w.route FROM {schema}.limit_gates AS w WHERE w.closed_by IS NULL AND NOT w.paused
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1)
            UNION ALL
            SELECT next.task, next.route FROM line CROSS JOIN LATERAL (
                SELECT w.task, w.route FROM {schema}.limit_gates AS w
                WHERE w.closed_by IS NULL AND NOT w.paused AND hashtextextended(w.task, hashtextextended(w.route, 0))
                    > hashtextextended(line.task, hashtextextended(line.route, 0))
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1) AS next
        )
        SELECT best.* FROM line CROSS JOIN LATERAL (
            SELECT w.ctid, w.urgency, w.rank, w.head, w.most, w.gate, w.key, w.queue, w.task, w.route, w.limits
            FROM {schema}.limit_gates AS w
            WHERE w.closed_by IS NULL AND NOT w.paused AND hashtextextended(w.task, hashtextextended(w.route, 0))
                = hashtextextended(line.task, hashtextextended(line.route, 0))
                AND (w.task, w.route) = (line.task, line.route)
                AND (SELECT queues.paused FROM {schema}.queues WHERE queues.name = w.queue) IS NOT TRUE
            ORDER BY w.urgency, w.rank, w.head LIMIT gates) AS best
        WHERE (of_tasks IS NULL OR line.task = ANY(of_tasks)) AND (of_route IS NULL OR line.route = of_route)
        ORDER BY best.urgency, best.rank, best.head LIMIT gates;
    ELSE
        RETURN QUERY
        WITH RECURSIVE lane AS (
            SELECT first.queue, first.task, first.route
            FROM (SELECT DISTINCT asked.queue FROM unnest(of_queues) AS asked (queue)
                WHERE (SELECT queues.paused FROM {schema}.queues WHERE queues.name = asked.queue) IS NOT TRUE) AS served
            CROSS JOIN LATERAL (
                SELECT w.queue, w.task, w.route FROM {schema}.limit_gates AS w
                WHERE w.closed_by IS NULL AND NOT w.paused
                    AND hashtextextended(w.queue, 0) = hashtextextended(served.queue, 0)
                ORDER BY hashtextextended(w.queue, 0), hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1) AS first
            UNION ALL
            SELECT next.queue, next.task, next.route FROM lane CROSS JOIN LATERAL (
                SELECT w.queue, w.task, w.route FROM {schema}.limit_gates AS w
                WHERE w.closed_by IS NULL AND NOT w.paused
                    AND hashtextextended(w.queue, 0) = hashtextextended(lane.queue, 0)
                    AND hashtextextended(w.task, hashtextextended(w.route, 0))
                        > hashtextextended(lane.task, hashtextextended(lane.route, 0))
                ORDER BY hashtextextended(w.queue, 0), hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1) AS next
        )
        SELECT best.* FROM lane CROSS JOIN LATERAL (
            SELECT w.ctid, w.urgency, w.rank, w.head, w.most, w.gate, w.key, w.queue, w.task, w.route, w.limits
            FROM {schema}.limit_gates AS w
            WHERE w.closed_by IS NULL AND NOT w.paused AND hashtextextended(w.queue, 0) = hashtextextended(lane.queue, 0)
                AND hashtextextended(w.task, hashtextextended(w.route, 0))
                    = hashtextextended(lane.task, hashtextextended(lane.route, 0))
                AND (w.queue, w.task, w.route) = (lane.queue, lane.task, lane.route)
            ORDER BY w.urgency, w.rank, w.head LIMIT gates) AS best
        WHERE (of_tasks IS NULL OR lane.task = ANY(of_tasks)) AND (of_route IS NULL OR lane.route = of_route)
        ORDER BY best.urgency, best.rank, best.head LIMIT gates;
    END IF;
END
$$;

-- Takes a turn, unless there is nothing to claim, and returns the best open lanes that are wanted. Each comes with what runs under
-- its key, how many jobs were found there (as many as could start, and one more), and the places of those that may start: each
-- job has its number under its key, after those that run, and may start if the limit reaches so far and no gate behind the last
-- one that was read could have a better job. `simple`: each lane has one key without a rate, none that is wanted waits for a rate,
-- and none is left to be reopened; where it is not simple, no jobs are looked for. In lanes that have a mark only jobs behind it
-- are found. `withheld`: claim nothing now. `unread`: there may be more notices. `limits`: not parsed yet. `bounded`: there may be
-- more gates; then `next_...` is where the head of a lane without a mark is after this claim. `took`: the seconds of the turn,
-- without the wait for it.
CREATE FUNCTION {schema}.limit_claim(
    withheld boolean, of_queues text[], of_tasks text[], of_route text, by_version integer, wanted integer, at bigint,
    notices integer, look integer, gates integer, mark_gates uuid[], mark_queues text[], mark_tasks text[], mark_routes text[],
    mark_urgencies integer[], mark_ranks bigint[], mark_ids uuid[])
RETURNS TABLE (
    simple boolean, unread boolean, bounded boolean, place tid, gate uuid, key uuid, most bigint, running bigint, limits text,
    marked boolean, jobs bigint, places tid[], next_urgency integer, next_rank bigint, next_id uuid, took float8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
<<turn>> -- a column that is added may have any name
DECLARE
    instant bigint := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    began timestamptz;
    notices_read bigint;
BEGIN
    IF withheld THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM {schema}.limit_notices) AND NOT EXISTS (SELECT 1 FROM {schema}.limit_free_keys)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at <= instant)
        AND NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE opens_at IS NOT NULL AND closed_at > instant)
        AND (NOT EXISTS (SELECT 1 FROM {schema}.limit_gates WHERE closed_by IS NULL AND NOT paused)
            OR NOT EXISTS (SELECT 1 FROM {schema}.limit_best_gates(of_queues, of_tasks, of_route, 1)))
        AND (
            SELECT count(*) < look AND count(*) FILTER (
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)) = 0
            FROM (SELECT * FROM {schema}.limit_gates WHERE opens_at IS NOT NULL LIMIT look) AS w)
    THEN
        RETURN;
    END IF;
    notices_read := {schema}.limit_read_notices(at, notices, look);
    began := clock_timestamp();
    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT w.*, mark.id IS NOT NULL AS marked, coalesce(mark.urgency, -2147483648) AS mark_urgency,
            coalesce(mark.rank, -9223372036854775808) AS mark_rank,
            coalesce(mark.id, '00000000-0000-0000-0000-000000000000'::uuid) AS mark_id
        FROM {schema}.limit_best_gates(of_queues, of_tasks, of_route, gates) AS w
            LEFT JOIN unnest(
                mark_gates, mark_queues, mark_tasks, mark_routes, mark_urgencies, mark_ranks, mark_ids
            ) AS mark (gate, queue, task, route, urgency, rank, id)
                ON mark.gate = w.gate AND mark.queue = w.queue AND mark.task = w.task AND mark.route = w.route
    ),
    bound AS MATERIALIZED (
        SELECT lane.urgency, lane.rank, lane.head FROM lane ORDER BY lane.urgency DESC, lane.rank DESC, lane.head DESC LIMIT 1
    ),
    rated AS MATERIALIZED (
        SELECT w.queue, w.task, w.route FROM {schema}.limit_gates AS w WHERE w.opens_at IS NOT NULL LIMIT look
    ),
    simply AS MATERIALIZED (
        SELECT count(*) = count(lane.key) AND (SELECT count(*) < look FROM rated)
            AND NOT EXISTS (
                SELECT 1 FROM rated AS w
                WHERE (of_queues IS NULL OR w.queue = ANY(of_queues)) AND (of_tasks IS NULL OR w.task = ANY(of_tasks))
                    AND (of_route IS NULL OR w.route = of_route)
                    AND (SELECT queues.paused FROM {schema}.queues WHERE queues.name = w.queue) IS NOT TRUE)
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.limit_free_keys CROSS JOIN LATERAL (
                    SELECT 1 FROM {schema}.limit_gates
                    WHERE limit_gates.closed_by = limit_free_keys.key AND limit_gates.opens_at IS NULL LIMIT 1) AS still) AS so,
            count(*) >= gates AS bounded
        FROM lane
    ),
    used AS MATERIALIZED (
        SELECT every.key, (SELECT count(*) FROM {schema}.holds WHERE holds.slot = every.key)
            + (SELECT count(*) FROM {schema}.limit_slots WHERE limit_slots.key = every.key) AS running
        FROM (SELECT DISTINCT lane.key FROM lane WHERE (SELECT so FROM simply)) AS every
    ),
    best AS MATERIALIZED (
        SELECT lane.place AS lane, lane.most, lane.marked, found.*,
            used.running + row_number() OVER (PARTITION BY lane.key ORDER BY found.urgency, found.rank, found.id) AS would_run
        FROM lane JOIN used ON used.key = lane.key CROSS JOIN LATERAL (
            SELECT w.ctid AS place, w.urgency, w.rank, w.id FROM {schema}.waiting AS w
            WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                AND (w.urgency, w.rank, w.id) > (lane.mark_urgency, lane.mark_rank, lane.mark_id)
                AND w.state = 'ready' AND w.parked AND NOT w.suspect AND coalesce(w.min_version, 1) <= by_version
                AND (w.expires_at IS NULL OR w.expires_at > instant OR w.started_at IS NOT NULL)
            ORDER BY w.urgency, w.rank, w.id LIMIT least(greatest(lane.most - used.running, 0), wanted) + 1) AS found
    ),
    starting AS MATERIALIZED (
        SELECT best.lane, best.place FROM best
        WHERE best.would_run <= best.most AND (
            NOT (SELECT bounded FROM simply)
            OR (best.urgency, best.rank, best.id) <= (SELECT bound.urgency, bound.rank, bound.head FROM bound))
        ORDER BY best.urgency, best.rank, best.id LIMIT wanted
    ),
    chosen AS (SELECT starting.lane, array_agg(starting.place) AS places FROM starting GROUP BY 1),
    counted AS (SELECT best.lane, count(*) AS jobs FROM best GROUP BY 1),
    following AS (
        SELECT DISTINCT ON (best.lane) best.lane, best.urgency, best.rank, best.id FROM best
        WHERE (SELECT bounded FROM simply) AND NOT best.marked AND best.place <> ALL(ARRAY(SELECT starting.place FROM starting))
        ORDER BY best.lane, best.urgency, best.rank, best.id
    )
    SELECT simply.so, notices_read >= notices, simply.bounded, lane.place, lane.gate, lane.key, lane.most, used.running,
        CASE WHEN lane.most IS NULL THEN lane.limits END, lane.marked, coalesce(counted.jobs, 0), chosen.places,
        following.urgency, following.rank, following.id, extract(epoch FROM clock_timestamp() - turn.began)::float8
    FROM simply LEFT JOIN lane ON true LEFT JOIN used ON used.key = lane.key
        LEFT JOIN counted ON counted.lane = lane.place LEFT JOIN chosen ON chosen.lane = lane.place
        LEFT JOIN following ON following.lane = lane.place;
END
$$;

-- Closes gates whose key is used up, which then has no free slots. Forgets those of the empty lanes that hold no jobs at all. Puts
-- idle ones, whose jobs nobody can claim now, behind all other gates. Moves the heads of others.
CREATE FUNCTION {schema}.limit_close(
    used_up tid[], empty tid[], idle tid[], moved tid[], urgencies integer[], ranks bigint[], ids uuid[], instant bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(used_up) > 0 THEN
        WITH closed AS (
            UPDATE {schema}.limit_gates SET closed_by = key, closed_at = instant
            WHERE closed_by IS NULL AND ctid = ANY(used_up) RETURNING key
        )
        DELETE FROM {schema}.limit_free_keys WHERE key = ANY(ARRAY(SELECT key FROM closed));
    END IF;
    IF cardinality(empty) > 0 THEN
        DELETE FROM {schema}.limit_gates AS lane
        WHERE lane.ctid = ANY(empty) AND lane.closed_by IS NULL AND NOT EXISTS (
            SELECT 1 FROM {schema}.waiting AS w
            WHERE w.gate = lane.gate AND w.queue = lane.queue AND w.task = lane.task AND w.route = lane.route
                AND w.state = 'ready' AND w.parked AND NOT w.suspect
            OFFSET 0);
        UPDATE {schema}.limit_gates
            SET urgency = 2147483647, rank = 9223372036854775807, head = 'ffffffff-ffff-ffff-ffff-ffffffffffff'
            WHERE ctid = ANY(idle) AND rank < 9223372036854775807;
    END IF;
    IF cardinality(moved) > 0 THEN
        UPDATE {schema}.limit_gates SET urgency = urgencies[array_position(moved, ctid)],
            rank = ranks[array_position(moved, ctid)], head = ids[array_position(moved, ctid)]
        WHERE ctid = ANY(moved);
    END IF;
END
$$;

-- ---- paused queues --------------------------------------------------------------------------------
-- Marks the jobs of paused queues that are first in the lines, up to a bound. Returns whether more may be first. It waits for
-- nobody: jobs and queues that another session has locked are left for the next claim. Whoever resumes a queue waits for sessions
-- that mark its jobs, and so sees all marks.
CREATE FUNCTION {schema}.mark_paused_jobs(many boolean, bound integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line record;
    paused_queues text[];
    places tid[];
    seen bigint;
    marked bigint;
    left_over bigint := bound;
BEGIN
    IF NOT many OR NOT EXISTS (SELECT 1 FROM {schema}.queues WHERE queues.paused) THEN
        RETURN false;
    END IF;
    FOR line IN
        WITH RECURSIVE every AS (
            (SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.in_paused_queue IS NOT TRUE
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1)
            UNION ALL
            SELECT next.task, next.route FROM every CROSS JOIN LATERAL (
                SELECT w.task, w.route FROM {schema}.waiting AS w
                WHERE w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.in_paused_queue IS NOT TRUE
                    AND hashtextextended(w.task, hashtextextended(w.route, 0))
                        > hashtextextended(every.task, hashtextextended(every.route, 0))
                ORDER BY hashtextextended(w.task, hashtextextended(w.route, 0)) LIMIT 1) AS next
        )
        SELECT every.task, every.route FROM every
    LOOP
        LOOP
            SELECT array_agg(first.ctid) FILTER (WHERE first.paused), array_agg(DISTINCT first.queue) FILTER (WHERE first.paused),
                count(*)
            INTO places, paused_queues, seen
            FROM (
                SELECT w.ctid, w.queue, (
                    SELECT queues.paused FROM {schema}.queues WHERE queues.name = w.queue) IS TRUE AS paused
                FROM {schema}.waiting AS w
                WHERE hashtextextended(w.task, hashtextextended(w.route, 0))
                        = hashtextextended(line.task, hashtextextended(line.route, 0))
                    AND w.state = 'ready' AND NOT w.parked AND NOT w.suspect AND w.in_paused_queue IS NOT TRUE
                ORDER BY w.urgency, w.rank, w.id LIMIT 200) AS first;
            EXIT WHEN places IS NULL;
            SELECT array_agg(shared.name) INTO paused_queues FROM (
                SELECT queues.name FROM {schema}.queues WHERE queues.name = ANY(paused_queues) AND queues.paused
                ORDER BY queues.name FOR SHARE SKIP LOCKED) AS shared;
            UPDATE {schema}.waiting SET in_paused_queue = true WHERE ctid = ANY(ARRAY(
                SELECT w.ctid FROM {schema}.waiting AS w
                WHERE w.ctid = ANY(places) AND w.queue = ANY(paused_queues) FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS marked = ROW_COUNT;
            left_over := left_over - marked;
            IF marked = 0 OR left_over <= 0 THEN
                RETURN true;
            END IF;
            EXIT WHEN cardinality(places) < seen;
        END LOOP;
    END LOOP;
    RETURN false;
END
$$;

-- ---- partitions -----------------------------------------------------------------------------------
-- History is kept in partitions of a day. `jobs` and `outcomes` are cut by the day on which an id was made (ids are UUIDv7); ids
-- that fit no partition go to `_rest`. Only the cost of removing old jobs depends on it: a partition whose jobs have all ended and
-- been kept long enough is dropped as a whole, however many they are.
--
-- The functions run with the rights of the role that migrated, so a worker's role need not be allowed to make tables. Each call
-- handles one day, in a transaction of its own, and gives up soon when another session holds a lock: a session that waits for a
-- table makes all others wait behind it.

CREATE FUNCTION {schema}.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the partitions of the day that is so many days ahead. Returns whether they exist.
CREATE FUNCTION {schema}.make_partition(ahead integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    starts timestamptz := today + ahead * interval '24 hours';
    table_name text;
    kind text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('perdure partitions {schema}', 0)) THEN
        RETURN false; -- another worker does it
    END IF;
    FOREACH kind IN ARRAY ARRAY['jobs', 'outcomes'] LOOP
        table_name := kind || '_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
        IF to_regclass('{schema}.' || table_name) IS NULL THEN
            EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.%I INCLUDING DEFAULTS)', table_name, kind);
            EXECUTE format(
                'ALTER TABLE {schema}.%I ATTACH PARTITION {schema}.%I FOR VALUES FROM (%L) TO (%L)',
                kind, table_name, {schema}.first_id(starts), {schema}.first_id(starts + interval '24 hours'));
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN check_violation OR lock_not_available THEN
    RETURN false; -- jobs of that day are in the default partition already, or a lock is held
END
$$;

-- Drops the oldest partitions that are over and in which nothing has to be kept at `now`. Returns how many jobs they held, NULL
-- when there is nothing to drop, or not now.
CREATE FUNCTION {schema}.drop_partition(now bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
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
        -- checked again: a dead letter may have been retried, or got a follower, meanwhile
        CONTINUE WHEN {schema}.partition_is_needed(day, starts, now);
        EXECUTE format('SELECT count(*) FROM {schema}.%I', 'outcomes_' || day) INTO gone;
        first := {schema}.first_id(starts);
        beyond := {schema}.first_id(starts + interval '24 hours');
        DELETE FROM {schema}.log WHERE job >= first AND job < beyond;
        DELETE FROM {schema}.kv WHERE job >= first AND job < beyond;
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

-- Whether a job of this day waits, runs, must be kept, or is followed by a job that has not ended.
CREATE FUNCTION {schema}.partition_is_needed(day text, starts timestamptz, now bigint) RETURNS boolean
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
REVOKE ALL ON FUNCTION {schema}.make_partition(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.drop_partition(bigint) FROM PUBLIC;

-- today and tomorrow; upkeep makes the next ones
SELECT {schema}.make_partition(0), {schema}.make_partition(1);
