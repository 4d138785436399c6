"""The columns of a job record, in two parts: what never changes after the enqueue, and what moves.

Every design stores all of them, in the order that wastes no padding: wide numbers, narrow numbers, texts. Priority is
kept negated, as urgency, so that the claim order is ascending in every column and one row comparison can start a scan in
its middle.
"""

GIVEN = """
    id uuid NOT NULL,
    created_at bigint NOT NULL,
    timeout bigint,
    lease bigint NOT NULL,
    expires_at bigint,
    chain_id uuid,
    urgency integer NOT NULL,
    max_attempts integer,
    min_version integer NOT NULL,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    backoff text,
    retention text,
    dead_retention text,
    run_when text,
    routing_key text COLLATE "C",
    key text COLLATE "C",
    tenant text,
    tags text,
    meta text,
    unique_key text COLLATE "C",
    unique_scope text,
    after text,
    limits text"""

MOVING = """
    rank bigint NOT NULL,
    run_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    prune_at bigint,
    stamp bigint,
    settled bigint,
    leased_until bigint,
    version integer NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    losses integer NOT NULL,
    waits integer NOT NULL,
    keep_last integer,
    state "char" NOT NULL,
    suspect boolean NOT NULL,
    parked boolean NOT NULL,
    hidden boolean NOT NULL,
    holds_key boolean NOT NULL,
    leased_by text,
    result text,
    progress text,
    errors text,
    reason text"""


def names(columns: str, table: str | None = None) -> str:
    """Only the names, separated by commas."""
    prefix = f"{table}." if table else ""
    return ", ".join(prefix + line.split()[0] for line in columns.strip().splitlines())
