"""taskiq with the stream broker of taskiq-redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, Durability, Mode
from benchmarks.loop import Done, LoopContender, beside, handler
from benchmarks.probe import Probe

from .peer import POWER_LOSS, WRITES, counting
from .place import address

QUEUE = "bench"


class Taskiq(LoopContender):
    key = "taskiq"
    title = "taskiq"
    module = "taskiq_redis"
    distribution = "taskiq"
    share = 0.2
    uvloop = True
    ways = frozenset({"single", "concurrent"})
    modes = frozenset({"loop", "threads", "io"})
    settings = f"RedisStreamBroker, {SLOTS} tasks at a time, everything else as it comes"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="given out again ten minutes after it was taken, as is any healthy job that takes longer",
        keeps="the stream's entries, for ever",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        broker = import_module("taskiq_redis").RedisStreamBroker(address(self.place), queue_name=QUEUE)
        broker.is_worker_process = for_work
        await broker.startup()
        if not for_work:
            self._task = broker.register_task(handler(Probe(0), "loop"), task_name="noop")
        try:
            yield broker
        finally:
            await broker.shutdown()

    async def put(self, queue: Any, text: str) -> None:
        await self._task.kiq(text)

    async def count_waiting(self, queue: Any) -> int:
        return await asyncio.to_thread(self._entries) - (await self._group())["entries-read"]

    async def count_completed(self, queue: Any) -> int | None:
        """Read and acknowledged."""
        group = await self._group()
        return int(group["entries-read"] - group["pending"])

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        def blocking(text: str) -> None:
            probe(text)

        queue.register_task(blocking if mode == "threads" else handler(probe, mode), task_name="noop")
        receiver = import_module("taskiq.api").run_receiver_task(queue, max_async_tasks=SLOTS)
        running = await beside(receiver, probe, done)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def _entries(self) -> int:
        with counting(self.place) as client:
            return int(client.xlen(QUEUE))

    async def _group(self) -> dict[str, int]:
        def ask() -> dict[str, int]:
            with counting(self.place) as client:
                (group,) = client.xinfo_groups(QUEUE)
            return {name: group[name] or 0 for name in ("entries-read", "pending")}

        return await asyncio.to_thread(ask)
