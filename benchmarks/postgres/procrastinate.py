"""Procrastinate: one job per fetch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, Durability, Mode
from benchmarks.loop import Done, beside, handler
from benchmarks.probe import Probe

from .peer import Peer
from .place import address, scalar

POOL = 20
NAME = "noop"


class Procrastinate(Peer):
    key = "procrastinate"
    title = "Procrastinate"
    module = "procrastinate"
    distribution = "procrastinate"
    # Every job is a fetch and a completion of its own.
    share = 0.1
    settings = f"PsycopgConnector, pool of {POOL} connections, concurrency {SLOTS}, batch_defer for bulk"
    waiting_query = "select count(*) from procrastinate_jobs where status = 'todo'"
    completed_query = "select count(*) from procrastinate_jobs where status = 'succeeded'"
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="stays doing until a task of your own finds it by the worker's heartbeat and retries it",
        keeps="every job with its status, and its events",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        procrastinate = import_module("procrastinate")
        connector = procrastinate.PsycopgConnector(conninfo=address(self.place), min_size=1, max_size=POOL)
        app = procrastinate.App(connector=connector)
        async with app.open_async():
            if scalar(self.place, "select to_regclass('procrastinate_jobs') is null"):
                await app.schema_manager.apply_schema_async()
            yield app

    async def put(self, queue: Any, text: str) -> None:
        await queue.configure_task(NAME).defer_async(text=text)

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.configure_task(NAME).batch_defer_async(*({"text": text} for text in texts))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        @queue.task(name=NAME)
        async def noop(text: str) -> None:
            await handle(text)

        running = queue.run_worker_async(concurrency=SLOTS, install_signal_handlers=False)
        worker = await beside(running, probe, done)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
