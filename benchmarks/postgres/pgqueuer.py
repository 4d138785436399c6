"""PgQueuer: batches out, batched completions back, over asyncpg."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contender import Durability, Mode
from benchmarks.loop import Done, beside, handler
from benchmarks.probe import Probe

from .peer import Peer
from .place import address

BATCH = 500
POOL = 20
NAME = "noop"


class PgQueuer(Peer):
    key = "pgqueuer"
    title = "PgQueuer"
    module = "pgqueuer"
    distribution = "pgqueuer"
    uvloop = True
    long_runs = True
    settings = f"asyncpg, batches of {BATCH}, no limit of tasks at a time; a pool of {POOL} connections to enqueue"
    waiting_query = "select count(*) from pgqueuer where status = 'queued'"
    completed_query = "select count(*) from pgqueuer_log where status = 'successful'"
    durability = Durability(
        writes="fsync at every commit; the log of outcomes too (durability=durable)",
        power_loss="every accepted job survives",
        worker_killed="picked up again when its heartbeat is 30 s old; a late completion of the old run is accepted",
        keeps="a log row for each outcome; the job itself is deleted",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        asyncpg, queries = import_module("asyncpg"), import_module("pgqueuer.queries")
        if for_work:
            connection = await asyncpg.connect(address(self.place))
            try:
                yield await self._installed(queries.Queries.from_asyncpg_connection(connection))
            finally:
                await connection.close()
        else:
            async with asyncpg.create_pool(address(self.place), min_size=1, max_size=POOL) as pool:
                yield await self._installed(queries.Queries.from_asyncpg_pool(pool))

    async def _installed(self, queries: Any) -> Any:
        if not await queries.schema_is_installed():
            await queries.install()
        return queries

    async def put(self, queue: Any, text: str) -> None:
        await queue.enqueue(NAME, text.encode())

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.enqueue([NAME] * len(texts), [text.encode() for text in texts], [0] * len(texts))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        manager = import_module("pgqueuer.qm").QueueManager(queue)
        handle = handler(probe, mode)

        @manager.entrypoint(NAME)
        async def noop(job: Any) -> None:
            await handle(job.payload.decode())

        worker = await beside(manager.run(batch_size=BATCH), probe, done)
        manager.shutdown.set()
        await worker
