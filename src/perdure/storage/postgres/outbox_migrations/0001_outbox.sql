-- Jobs of callers' transactions that wait to be moved to their store.
CREATE TABLE {schema}.perdure_outbox (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    enqueued_at bigint NOT NULL,
    set_aside_at bigint, -- it cannot be moved: since when, and why
    min_version integer NOT NULL, -- the oldest version of Perdure that may move it
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    job text COLLATE "C" NOT NULL, -- the whole job as JSON
    error text
);
-- All rows come and go: dead ones are to be cleared away early.
ALTER TABLE {schema}.perdure_outbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
