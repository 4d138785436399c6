"""Group commit: single enqueues that come while one is under way are stored together when it is done. A lone one goes
straight through. Nobody is hurt by another's job: when a gathered call fails, each is tried by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from .errors import PerdureError, StoreError, StoreUnavailable
from .job import NewJob
from .storage.contract import Full, Orphan, Placed, Storage
from .storage.rules import explained_orphan

REPEAT_FOR = 60.0  # rows that ended stay, hidden, for ten minutes: within one a repeated enqueue finds its first self


class Waiting(NamedTuple):
    job: NewJob
    placed: asyncio.Future[Placed]


class Gatherer:
    """The way of single jobs into the store of one event loop."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._busy = False
        self._waiting: list[Waiting] = []
        self._drain: asyncio.Task[None] | None = None

    async def place(self, job: NewJob) -> Placed:
        """Store one job. `Full` and StoreError concern this job alone."""
        if self._busy:
            future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
            self._waiting.append(Waiting(job, future))
            return await future
        self._busy = True
        try:
            return (await stored(self._storage, [job]))[0]
        finally:
            self._next()

    async def close(self) -> None:
        while self._drain is not None and not self._drain.done():
            await asyncio.wait([self._drain])

    def _next(self) -> None:
        if self._waiting:
            self._drain = asyncio.get_running_loop().create_task(self._drain_waiting(), name="perdure enqueue")
        else:
            self._busy = False

    async def _drain_waiting(self) -> None:
        try:
            while self._waiting:
                chunk = self._storage.chunk
                batch, self._waiting = self._waiting[:chunk], self._waiting[chunk:]
                await self._settle([each for each in batch if not each.placed.done()])
        finally:
            self._busy = False
            for each in self._waiting:
                each.placed.cancel()
            self._waiting = []

    async def _settle(self, batch: Sequence[Waiting]) -> None:
        """Store a gathered batch; if it fails, find out whose fault it was."""
        if len(batch) < 2:
            for each in batch:
                await self._settle_one(each)
            return
        try:
            placed = await stored(self._storage, [each.job for each in batch])
        except Full as full:
            await self._settle_full([each for each in batch if each.job.queue == full.queue])
            await self._settle([each for each in batch if each.job.queue != full.queue])
        except Exception:
            for each in batch:
                await self._settle_one(each)
        else:
            for each, place in zip(batch, placed, strict=True):
                if not each.placed.done():
                    each.placed.set_result(place)

    async def _settle_full(self, batch: Sequence[Waiting]) -> None:
        """Jobs of a queue without room for all: one by one until it is full, then at once for all that it would hold to
        the same. Jobs of a lower priority might be dropped, those with a key might be duplicates: they are asked."""
        full: Full | None = None
        floor = 0
        for each in batch:
            if full is not None and each.job.priority >= floor and each.job.unique_key is None:
                _fail(each, Full(full.queue, full.max_depth, waits=full.waits))
            elif isinstance(error := await self._settle_one(each), Full):
                full, floor = error, each.job.priority

    async def _settle_one(self, each: Waiting) -> Exception | None:
        try:
            (placed,) = await stored(self._storage, [each.job])
        except Exception as error:
            _fail(each, error)
            return error
        if not each.placed.done():
            each.placed.set_result(placed)
        return None


def _fail(each: Waiting, error: Exception) -> None:
    if not each.placed.done():
        each.placed.set_exception(error)


async def stored(storage: Storage, jobs: Sequence[NewJob]) -> list[Placed]:
    """Enqueue in one call. A broken connection leaves open whether it took hold; ids make repeating safe."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REPEAT_FOR
    pause = 0.05
    while True:
        try:
            return await storage.enqueue(jobs)
        except ConnectionError as error:
            if loop.time() + pause > until:
                raise StoreUnavailable(
                    f"the {storage.name} store was not reached for {REPEAT_FOR:.0f} s: {error}; whether the last "
                    "try was stored is not known, and repeating the same calls within ten minutes is safe"
                ).at(storage.place) from error
        except Orphan as orphan:
            raise explained_orphan(orphan, jobs) from None
        except (PerdureError, Full):
            raise
        except Exception as error:
            raise StoreError(
                f"the {storage.name} store refused the jobs: {type(error).__name__}: {error}; nothing was stored"
            ) from error
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(pause * 2, 1.0)


async def room(storage: Storage, pause: float) -> None:
    """Wait until a full queue may have room: some job ended, or the pause is over."""
    stir = asyncio.Event()
    stop = storage.listen("changed", stir.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may lose a cancellation on Python 3.11
                await stir.wait()
    finally:
        stop()
