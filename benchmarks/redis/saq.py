"""SAQ on Redis."""

import asyncio
from typing import Any

from benchmarks.contender import SLOTS
from benchmarks.saq import SaqContender

from .older import OlderDriverContender
from .peer import POWER_LOSS, WRITES, counting, keys
from .place import address


class Saq(SaqContender, OlderDriverContender):
    module = "saq.queue.redis"
    share = 0.1
    settings = f"concurrency {SLOTS}, jobs kept for an hour"
    durability = SaqContender.bought_with(WRITES, POWER_LOSS)

    def url(self) -> str:
        return address(self.place)

    async def count_waiting(self, queue: Any) -> int:
        return int(await queue.count("queued"))

    async def count_completed(self, queue: Any) -> int | None:
        def kept() -> int:
            with counting(self.place) as client:
                return keys(client, "saq:job:*")

        return await asyncio.to_thread(kept) - int(await queue.count("incomplete"))
