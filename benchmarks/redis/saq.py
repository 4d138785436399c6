"""SAQ on Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, Durability, Mode
from benchmarks.loop import Done, beside, handler
from benchmarks.probe import Probe

from .older import OlderDriverContender
from .peer import POWER_LOSS, WRITES, counting, keys
from .place import address

NAME = "noop"


class Saq(OlderDriverContender):
    key = "saq"
    title = "SAQ"
    module = "saq"
    distribution = "saq"
    share = 0.1
    ways = frozenset({"single", "concurrent"})
    modes = frozenset({"loop", "threads", "io"})
    settings = f"concurrency {SLOTS}, jobs kept for an hour"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="swept when its timeout is over; retried only if retries are set",
        keeps="every job with its result, for a time",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        queue = import_module("saq").Queue.from_url(address(self.place))
        await queue.connect()
        try:
            yield queue
        finally:
            await queue.disconnect()

    async def put(self, queue: Any, text: str) -> None:
        await queue.enqueue(NAME, text=text, ttl=3600)

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.count("queued"))

    async def count_completed(self, queue: Any) -> int | None:
        def kept() -> int:
            with counting(self.place) as client:
                return keys(client, "saq:job:*")

        return await asyncio.to_thread(kept) - int(await queue.count("incomplete"))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        async def noop(ctx: Any, *, text: str) -> None:
            await handle(text)

        def blocking(ctx: Any, *, text: str) -> None:
            probe(text)

        chosen = blocking if mode == "threads" else noop
        worker = import_module("saq").Worker(queue, functions=[(NAME, chosen)], concurrency=SLOTS)
        running = await beside(worker.start(), probe, done)
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
