"""arq."""

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


class Arq(OlderDriverContender):
    key = "arq"
    title = "arq"
    module = "arq"
    distribution = "arq"
    share = 0.1
    ways = frozenset({"single", "concurrent"})
    settings = f"max_jobs {SLOTS}, everything else as it comes: it polls every half second"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="runs again when its mark of being in progress is over, five minutes by default",
        keeps="every result, for an hour",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        connections = import_module("arq.connections")
        pool = await connections.create_pool(connections.RedisSettings.from_dsn(address(self.place)))
        try:
            yield pool
        finally:
            await pool.aclose()

    async def put(self, queue: Any, text: str) -> None:
        await queue.enqueue_job(NAME, text)

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.zcard("arq:queue"))

    async def count_completed(self, queue: Any) -> int | None:
        def kept() -> int:
            with counting(self.place) as client:
                return keys(client, "arq:result:*")

        return await asyncio.to_thread(kept)

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        async def noop(ctx: Any, text: str) -> None:
            await handle(text)

        arq = import_module("arq.worker")
        worker = arq.Worker([arq.func(noop, name=NAME)], redis_pool=queue, max_jobs=SLOTS, handle_signals=False)
        running = await beside(worker.async_run(), probe, done)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
