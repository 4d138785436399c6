"""What people write who have MongoDB and no queue: a loop around find_one_and_update."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.contender import POLL_SECONDS, Durability, Mode
from benchmarks.loop import Done, Handler, LoopContender, beside, handler
from benchmarks.probe import Probe

from .place import address, database

FIRST = [("priority", -1), ("run_at", 1)]
LEASE = timedelta(minutes=1)


class PlainLoop(LoopContender):
    key = "loop"
    title = "find_one_and_update"
    module = "pymongo"
    distribution = "pymongo"
    settings = "one loop, one job at a time"
    share = 0.1
    durability = Durability(
        writes="each claim and each completion by itself, in the journals of a majority",
        power_loss="every accepted job survives",
        worker_killed="its job runs again when the lease ends",
        keeps="every job",
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        from pymongo import AsyncMongoClient

        async with AsyncMongoClient(address(self.place)) as client:
            jobs = database(client)["jobs"]
            await jobs.create_index([("state", 1), *FIRST])
            yield jobs

    async def put(self, queue: Any, text: str) -> None:
        await queue.insert_one(_job(text))

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.insert_many([_job(text) for text in texts])

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.count_documents({"state": "ready"}))

    async def count_completed(self, queue: Any) -> int | None:
        return int(await queue.count_documents({"state": "done"}))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        handle = handler(probe, mode)
        running = await beside(_loop(queue, handle), probe, done)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _job(text: str) -> dict[str, Any]:
    return {"_id": str(uuid.uuid4()), "state": "ready", "priority": 0, "run_at": datetime.now(UTC), "payload": text}


async def _loop(jobs: Any, handle: Handler) -> None:
    while True:
        leased = {"$set": {"state": "running", "until": datetime.now(UTC) + LEASE}, "$inc": {"attempt": 1}}
        job = await jobs.find_one_and_update({"state": "ready"}, leased, sort=FIRST)
        if job is None:
            await asyncio.sleep(POLL_SECONDS)
            continue
        await handle(job["payload"])
        await jobs.update_one({"_id": job["_id"], "state": "running"}, {"$set": {"state": "done"}})
