"""A peer whose jobs are counted by asking its tables."""

import asyncio
from typing import Any, ClassVar

from benchmarks.loop import LoopContender

from .place import scalar


class Peer(LoopContender):
    waiting_query: ClassVar[str]
    completed_query: ClassVar[str]

    async def count_waiting(self, queue: Any) -> int:
        return await self._count(self.waiting_query)

    async def count_completed(self, queue: Any) -> int | None:
        return await self._count(self.completed_query)

    async def _count(self, query: str) -> int:
        """In a thread: the worker that shares this loop goes on meanwhile."""
        return int(await asyncio.to_thread(scalar, self.place, query))
