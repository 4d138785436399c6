"""oban for Python, which needs a newer Python than the others: it runs in an environment of its own."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contender import ROOT, SLOTS, Durability, Mode
from benchmarks.elsewhere import ElsewhereContender
from benchmarks.loop import Done, handler
from benchmarks.probe import Probe

from .peer import Peer
from .place import address, scalar

POOL = 20
MODULE, NAME = "bench", "Noop"


class Oban(Peer, ElsewhereContender):
    key = "oban"
    title = "oban (Python)"
    module = "oban"
    distribution = "oban"
    python = Path(os.environ.get("PERDURE_BENCH_OBAN_PYTHON") or ROOT / ".venv-bench-oban" / "bin" / "python")
    uvloop = True
    share = 0.2
    settings = f"queue limit {SLOTS}, pool of {POOL} connections, everything else as it comes"
    waiting_query = "select count(*) from oban_jobs where state = 'available'"
    completed_query = "select count(*) from oban_jobs where state = 'completed'"
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="runs again five minutes after it began, as does any healthy job that takes longer",
        keeps="every job with its state, for a day",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        """For work only the pool, because the queues of an instance begin with it."""
        oban = import_module("oban")
        pool = await oban.Oban.create_pool(address(self.place), min_size=1, max_size=POOL)
        try:
            if scalar(self.place, "select to_regclass('oban_jobs') is null"):
                await import_module("oban.schema").install(pool)
            if for_work:
                yield pool
            else:
                async with oban.Oban(pool=pool) as client:
                    yield client
        finally:
            await pool.close()

    def _job(self, text: str) -> Any:
        return import_module("oban").Job(worker=f"{MODULE}.{NAME}", args={"text": text})

    async def put(self, queue: Any, text: str) -> None:
        await queue.enqueue(self._job(text))

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.enqueue_many([self._job(text) for text in texts])

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        class Noop:
            async def process(self, job: Any) -> None:
                await handle(job.args["text"])

        Noop.__module__, Noop.__qualname__ = MODULE, NAME
        oban = import_module("oban")
        oban.worker(queue="default")(Noop)
        async with oban.Oban(pool=queue, queues={"default": SLOTS}):
            probe.ready()
            await done()
