"""SAQ on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, Durability, Mode
from benchmarks.loop import Done, beside, handler
from benchmarks.probe import Probe

from .peer import Peer
from .place import address

POOL = 20
NAME = "noop"


class Saq(Peer):
    key = "saq"
    title = "SAQ"
    module = "saq.queue.postgres"
    distribution = "saq"
    ways = frozenset({"single", "concurrent"})
    # Several statements for each job, no bulk form.
    share = 0.05
    settings = f"concurrency {SLOTS}, pool of {POOL} connections, jobs kept for an hour"
    waiting_query = "select count(*) from saq_jobs where status = 'queued'"
    completed_query = "select count(*) from saq_jobs where status = 'complete'"
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="swept when its timeout is over; retried only if retries are set",
        keeps="every job with its result, for a time",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        queue = import_module("saq").Queue.from_url(address(self.place), max_size=POOL)
        await queue.connect()
        try:
            yield queue
        finally:
            await queue.disconnect()

    async def put(self, queue: Any, text: str) -> None:
        await queue.enqueue(NAME, text=text, ttl=3600)

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        async def noop(ctx: Any, *, text: str) -> None:
            await handle(text)

        worker = import_module("saq").Worker(queue, functions=[(NAME, noop)], concurrency=SLOTS)
        running = await beside(worker.start(), probe, done)
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
