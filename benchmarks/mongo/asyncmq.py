"""asyncmq on MongoDB."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contender import SLOTS, Durability, Mode
from benchmarks.loop import Done, LoopContender, beside, handler
from benchmarks.probe import Probe

from .place import address

QUEUE = "bench"


class AsyncMQ(LoopContender):
    key = "asyncmq"
    title = "asyncmq"
    module = "asyncmq"
    distribution = "asyncmq"
    settings = f"concurrency {SLOTS}, everything else as it comes"
    ways = frozenset({"single", "concurrent"})
    share = 0.05
    durability = Durability(
        writes="each step of a job by itself, with the server's default: in the journals of a majority",
        power_loss="every accepted job survives",
        worker_killed="its jobs run again when they are found stalled, if that is switched on",
        keeps="every job with its outcome",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        from asyncmq.backends.mongodb import MongoDBBackend

        logging.disable(logging.WARNING)
        url = address(self.place)
        backend = MongoDBBackend(mongo_url=url, database=url.rpartition("/")[2].partition("?")[0])
        await backend.connect()
        if not for_work:
            self._task = _task(handler(Probe(0), "loop"))
        try:
            yield backend
        finally:
            await backend.close()

    async def put(self, queue: Any, text: str) -> None:
        await self._task.enqueue(text, backend=queue)

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.store.collection.count_documents({"status": "waiting"}))

    async def count_completed(self, queue: Any) -> int | None:
        return int(await queue.store.collection.count_documents({"status": "completed"}))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        from asyncmq.runners import run_worker

        _task(handler(probe, mode))
        running = await beside(run_worker(QUEUE, queue, concurrency=SLOTS), probe, done)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _task(handle: Any) -> Any:
    from asyncmq.tasks import task

    async def noop(text: str) -> None:
        await handle(text)

    return task(queue=QUEUE)(noop)
