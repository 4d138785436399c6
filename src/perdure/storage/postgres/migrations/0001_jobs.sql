-- The first schema. A job's row is written once; what moves stands in thin rows beside it, one at a time:
--   waiting    blocked, scheduled or ready          (small, deleted by the claim)
--   holds      running, or ended while code still runs   (small, deleted by the holder's word)
--   outcomes   ended                                (only added to)
-- Instants and durations are microseconds. NULL stands for what most jobs have, which then takes no room; what that is
-- stands in queries/record.sql.
-- Texts that are compared are in the C collation: equal bytes, and an order that no library update changes.

CREATE TABLE {schema}.jobs (
    created_at bigint NOT NULL,
    run_at bigint,                       -- the first one, NULL: at once; a later one stands in the moving row
    lease bigint NOT NULL,
    timeout bigint,
    max_attempts bigint,
    expires_at bigint,
    priority integer NOT NULL,
    min_version integer,
    id uuid NOT NULL,
    chain_id uuid,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
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
    errors text COLLATE "C",             -- of failed attempts: the one column that is ever written again
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- without id, so that only the primary key can serve a search for one, even in a partition that is still empty
CREATE INDEX jobs_created ON {schema}.jobs (created_at);
CREATE INDEX jobs_key ON {schema}.jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_chain ON {schema}.jobs (chain_id) WHERE chain_id IS NOT NULL;
CREATE TABLE {schema}.jobs_rest PARTITION OF {schema}.jobs DEFAULT;

-- `urgency` is -1 - priority, so that the order of a claim rises in every column. `route` is '' without a routing key,
-- else = and the key. `held_key`: the unique key that the job occupies; `key_waits`: only until it is claimed.
CREATE TABLE {schema}.waiting (
    rank bigint NOT NULL,
    run_at bigint,
    expires_at bigint,
    started_at bigint,
    accepted_stamp bigint,
    urgency integer NOT NULL,
    min_version integer,
    version integer,
    attempt integer,
    failures integer,
    losses integer,
    waits integer,
    id uuid NOT NULL PRIMARY KEY,
    parked boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    key_waits boolean NOT NULL DEFAULT false,
    state text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    held_key text COLLATE "C",
    reason text COLLATE "C",
    progress text COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000
);
-- what can be claimed, in lanes of queue, task and routing key
CREATE INDEX waiting_ready ON {schema}.waiting (queue, task, route, urgency, rank, id)
    WHERE state = 'ready' AND NOT parked AND NOT suspect;
CREATE INDEX waiting_aside ON {schema}.waiting (queue) WHERE state <> 'ready' OR parked OR suspect;
CREATE INDEX waiting_suspect ON {schema}.waiting (urgency, rank, id) WHERE state = 'ready' AND suspect;
CREATE INDEX waiting_due ON {schema}.waiting (run_at, id) WHERE state = 'scheduled';
CREATE INDEX waiting_expiry ON {schema}.waiting (expires_at, id) WHERE expires_at IS NOT NULL;

-- No index but the key: a renewal then touches the row alone, and there are only as many rows as jobs that run.
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
    ended boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    leased_by text COLLATE "C" NOT NULL,
    held_key text COLLATE "C",
    reason text COLLATE "C",
    progress text COLLATE "C"
) WITH (
    fillfactor = 50, -- room for renewals on the same page
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000
);

-- `created_at` is noted for dead letters alone and `task` for counted jobs alone, for their indexes.
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
    hidden boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
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

-- who occupies a unique key of scope waiting or active
CREATE TABLE {schema}.held_keys (
    key text COLLATE "C" NOT NULL PRIMARY KEY,
    job uuid NOT NULL
);

-- unique keys of scope any (ends is NULL) and window. One that is over gets a new row, which starts where the last one
-- ended: of two who find it over at once, only one can write that row.
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

CREATE TABLE {schema}.workers (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    running bigint NOT NULL,
    about text COLLATE "C" NOT NULL
);
