"""SAQ on any of its stores."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, ClassVar

from .contender import SLOTS, Durability, Mode
from .loop import Done, LoopContender, beside, handler
from .probe import Probe

NAME = "noop"


class SaqContender(LoopContender):
    key = "saq"
    title = "SAQ"
    distribution = "saq"
    ways = frozenset({"single", "concurrent"})
    modes = frozenset({"loop", "threads", "io"})
    # What the queue is told about its store beside the address.
    store: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def url(self) -> str: ...

    @staticmethod
    def bought_with(writes: str, power_loss: str) -> Durability:
        return Durability(
            writes=writes,
            power_loss=power_loss,
            worker_killed="swept when its timeout is over; retried only if retries are set",
            keeps="every job with its result, for a time",
        )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        queue = import_module("saq").Queue.from_url(self.url(), **self.store)
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

        def blocking(ctx: Any, *, text: str) -> None:
            probe(text)

        chosen = blocking if mode == "threads" else noop
        worker = import_module("saq").Worker(queue, functions=[(NAME, chosen)], concurrency=SLOTS)
        running = await beside(worker.start(), probe, done)
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
