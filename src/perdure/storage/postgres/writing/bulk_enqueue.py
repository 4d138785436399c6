"""Enqueues long lists: several at once, each on a connection of its own, in their order.

The order of a list is that of its jobs' instants; ids break ties. Two sessions that read the clock on their own may read it
in any order. So long enqueues get their instants one after the other, and are then stored at the same time.

Where a job depends on those before it (a bounded or fair queue, a unique key, a parent, an id that is stored already), the
lists are stored one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any

from perdure.core.record import NewJob, UniformJobs
from perdure.storage.contract import EnqueueResult

from ..connection.server import Connection, Server
from .enqueue import Enqueue
from .fast_copy import can_copy


class LongEnqueues:
    """Those of one loop."""

    def __init__(self, enqueue: Enqueue, clock: Callable[[Connection], Coroutine[Any, Any, int]]) -> None:
        self._enqueue = enqueue
        self._clock = clock
        self._in_order = asyncio.Lock()
        self._waiting_first = False
        self._last: asyncio.Future[None] | None = None  # done when the one before, and all before that, are stored

    async def put(self, server: Server, jobs: Sequence[NewJob], now: int | None) -> list[EnqueueResult]:
        """Put jobs on record in a transaction of their own, behind those of earlier calls."""
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        try:
            placed = await self._store_beside_others(server, jobs, now)
            if placed is None:
                if before is not None:
                    await asyncio.wait([before])
                insert_planned = self._enqueue.insert_planned
                placed = await server.run_indexed(lambda connection: insert_planned(connection, jobs, now), repeat=True)
            return placed
        finally:
            _complete_after(own, before)

    async def _store_beside_others(
        self, server: Server, jobs: Sequence[NewJob], now: int | None
    ) -> list[EnqueueResult] | None:
        """None: they have to wait for those before them."""
        if isinstance(jobs, UniformJobs) and can_copy(jobs) and not server.pooled:
            return await self._copy(server, jobs, now)
        async with self._in_order:
            instant = await server.run_indexed(self._clock, repeat=True) if now is None else now
        inserts, insert_at_once = self._enqueue.ready(jobs, instant), self._enqueue.insert_at_once
        if not inserts:
            return None
        return await server.run_indexed(lambda connection: insert_at_once(connection, jobs, inserts), repeat=True)

    async def _copy(self, server: Server, jobs: UniformJobs, now: int | None) -> list[EnqueueResult] | None:
        """The next may read the clock as soon as these have."""
        turn = ExitStack()
        await self._in_order.acquire()
        turn.callback(self._in_order.release)
        self._waiting_first = waiting_first = not self._waiting_first
        read = now

        def instant(clock: int) -> int:
            nonlocal read
            read = clock if read is None else read  # one that is repeated keeps its place
            turn.close()
            return read

        try_copy = self._enqueue.try_copy
        with turn:
            return await server.run_indexed(
                lambda connection: try_copy(connection, jobs, instant, waiting_first=waiting_first), repeat=True
            )


def _complete_after(own: asyncio.Future[None], before: asyncio.Future[None] | None) -> None:
    if before is None or before.done():
        own.set_result(None)
    else:
        before.add_done_callback(lambda _: own.set_result(None))
