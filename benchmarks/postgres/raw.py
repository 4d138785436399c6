"""The raw limit: finish the last batch and claim the next in one statement of a function, with no handler, codec or worker.

The table has what a durable queue cannot do without: an id, a state outside the claim index once finished, a hold and a
lease; a finished row stays. One connection, one commit a batch, full durability.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.payload import payloads

from .place import address, connected

BATCHES = (100, 500)

SCHEMA = """
create table job (
    id uuid primary key, queue text not null, state smallint not null, rank bigint not null, payload text not null,
    attempt integer not null default 0, stamp bigint, leased_until timestamptz, finished_at timestamptz
);
create index claimable on job (queue, rank) where state = 0;
create function exchange(finished uuid[], by bigint, room integer) returns table (id uuid, payload text)
language plpgsql as $$
begin
    update job set state = 2, finished_at = now()
    where job.id = any (finished) and state = 1 and stamp = by - 1;
    return query update job set state = 1, attempt = attempt + 1, stamp = by, leased_until = now() + interval '1 minute'
    where job.id = any (array(
        select job.id from job where queue = 'default' and state = 0 order by rank limit room for update skip locked))
    returning job.id, job.payload;
end $$;
"""
INSERT = """
insert into job (id, queue, state, rank, payload)
select gen_random_uuid(), 'default', 0, number, payload from unnest(%s::bigint[], %s::text[]) as t (number, payload)
"""


def raw_labels() -> Sequence[str]:
    return [f"psycopg by {batch}" for batch in BATCHES]


def raw_rate(place: Path, label: str, jobs: int) -> dict[str, float]:
    batch = int(label.rpartition(" ")[2])
    with connected(address(place)) as connection:
        connection.execute(SCHEMA)
        connection.execute(INSERT, (list(range(jobs)), payloads(jobs)))
        connection.execute("analyze job")
        started = time.perf_counter()
        held: list[object] = []
        finished = stamp = 0
        while held or not stamp:
            stamp += 1
            rows = connection.execute("select id, payload from exchange(%b, %b, %b)", (held, stamp, batch), binary=True)
            finished += len(held)
            held = [row[0] for row in rows]
        seconds = time.perf_counter() - started
    assert finished == jobs, f"{jobs} inserted, {finished} finished"
    return {"rate": jobs / seconds}
