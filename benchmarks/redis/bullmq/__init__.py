"""BullMQ, for Python and for Node."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contender import ROOT, SLOTS, Durability, Mode
from benchmarks.loop import Done, LoopContender, handler
from benchmarks.node import NodeContender
from benchmarks.probe import Probe

from ..peer import POWER_LOSS, WRITES
from ..place import address

QUEUE, NAME = "bench", "noop"
SETTINGS = f"concurrency {SLOTS}, addBulk for bulk, everything else as it comes"
DURABILITY = Durability(
    writes=WRITES,
    power_loss=POWER_LOSS,
    worker_killed="its jobs run again when they are found stalled, within a minute; a second time they have failed",
    keeps="every job with its result",
)


class BullMQPython(LoopContender):
    key = "bullmq-python"
    title = "BullMQ (Python)"
    module = "bullmq"
    distribution = "bullmq"
    share = 0.1
    settings = SETTINGS
    durability = DURABILITY

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        queue = import_module("bullmq").Queue(QUEUE, {"connection": address(self.place)})
        try:
            yield queue
        finally:
            await queue.close()

    async def put(self, queue: Any, text: str) -> None:
        await queue.add(NAME, {"text": text})

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.addBulk([{"name": NAME, "data": {"text": text}} for text in texts])

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.getWaitingCount())

    async def count_completed(self, queue: Any) -> int | None:
        return int(await queue.getCompletedCount())

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)

        async def noop(job: Any, token: str) -> None:
            await handle(job.data["text"])

        options = {"connection": address(self.place), "concurrency": SLOTS, "autorun": False}
        worker = import_module("bullmq").Worker(QUEUE, noop, options)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)
        probe.ready()
        await done()
        await worker.close(True)
        await asyncio.gather(running, return_exceptions=True)


class BullMQNode(NodeContender):
    key = "bullmq-node"
    title = "BullMQ (Node)"
    module = "bullmq"
    distribution = "bullmq"
    folder = Path(__file__).parent
    modules = Path(os.environ.get("PERDURE_BENCH_BULLMQ") or ROOT / ".bench-node-bullmq")
    settings = SETTINGS
    durability = DURABILITY
