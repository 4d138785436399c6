"""What is done with each design, and what is read off afterwards."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass

from servers import Server

from .catalogue import Design
from .client import QUEUE, START, TASK, Client, HandedOutWrongly, Window
from .database import Database, Rot, fresh

AHEAD = 20_000  # jobs that wait while a queue is churned
LEFT = 2_000  # jobs that still wait when the claim's reads are counted


@dataclass(frozen=True)
class Drained:
    """Jobs that all waited, then were claimed and finished as fast as it goes."""

    enqueue_rate: float
    enqueue_wal: float  # bytes a job
    enqueue_cpu: float  # microseconds a job
    rate: float
    wal: float
    cpu: float


@dataclass(frozen=True)
class Churned:
    """Jobs that came while others went."""

    rate: float
    wal: float
    cpu: float
    windows: list[Window]
    reads: int  # pages that the scan of a claim touched at the end, from where the worker would start it
    rot: Rot


def drain(server: Server, design: Design, *, jobs: int, batch: int, in_flight: int) -> Drained:
    """Enqueue everything, then drain it."""
    with fresh(server, design, tuned=False, batch=batch) as database:
        client = Client(database, design, jobs, batch)
        before = database.wal()
        asyncio.run(client.enqueue())
        between, enqueued = database.wal(), client.whole()
        asyncio.run(client.drain(in_flight))
        after, drained = database.wal(), client.whole()
        _check(client, database)
        return Drained(
            enqueue_rate=enqueued.rate,
            enqueue_wal=(between - before) / jobs,
            enqueue_cpu=enqueued.cpu,
            rate=drained.rate,
            wal=(after - between) / jobs,
            cpu=drained.cpu,
        )


def backlog(server: Server, design: Design, *, jobs: int, waiting: int, batch: int, in_flight: int) -> Window:
    """The first `jobs` of many more that wait, left by somebody else."""
    with fresh(server, design, tuned=False, batch=batch) as database:
        with database.connect() as connection:
            connection.execute("SELECT backlog(%s, %s, %s)", (waiting, QUEUE, TASK))
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
        client = Client(database, design, waiting, batch, stop_at=jobs)
        asyncio.run(client.drain(in_flight))
        client.check()
        return client.whole()


def churn(
    server: Server, design: Design, *, jobs: int, batch: int, in_flight: int, tuned: bool = False, held: bool = False
) -> Churned:
    """Enqueue and drain at once, so that rows come and go; `held`: under the eyes of an old snapshot."""
    with fresh(server, design, tuned=tuned, batch=batch) as database:
        client = Client(database, design, jobs, batch, stop_at=max(batch, jobs - LEFT))
        with database.snapshot_held() if held else nullcontext():
            before = database.wal()
            asyncio.run(_churned(client, in_flight))
            wal, whole, windows = database.wal() - before, client.whole(), client.windows()
            reads = database.claim_buffers(QUEUE, TASK, batch, client.mark if design.mark else START)
            rot = database.rot()
            client.stop_at = None
            asyncio.run(client.drain(in_flight))
        _check(client, database)
        return Churned(whole.rate, wal / jobs, whole.cpu, windows, reads, rot)


async def _churned(client: Client, in_flight: int) -> None:
    await asyncio.gather(client.enqueue(ahead=AHEAD), client.drain(in_flight))


def _check(client: Client, database: Database) -> None:
    client.check()
    kept, left = database.ended_jobs(), database.open_jobs()
    if left or kept != (client.jobs if client.design.keeps else 0):
        raise HandedOutWrongly(f"{client.design.name}: {left} jobs are left, {kept} of {client.jobs} are kept as ended")
