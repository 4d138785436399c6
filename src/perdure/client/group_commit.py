"""Group commit: single enqueues that come while one is under way are stored together when it is done. A lone one goes
straight through. Nobody is hurt by another's job: when a gathered call fails, each is tried by itself.

A store that is down or busy is waited for by all at once, and each caller has its error when its own time is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..core.record import NewJob
from ..errors import PerdureError, StoreError, StoreUnavailable
from ..storage.contract import EnqueueResult, MissingParent, QueueAtCapacity, Storage
from ..storage.rules.records import explain_missing_parent


class NotReached(StoreUnavailable):
    """The store did not take the jobs before the time of the call was over."""


class Waiting(NamedTuple):
    job: NewJob
    placed: asyncio.Future[EnqueueResult]
    until: float  # by the loop's clock; then its caller gets an error


class GroupCommit:
    """The way of single jobs into the store of one event loop."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._busy = False
        self._waiting: list[Waiting] = []
        self._drain: asyncio.Task[None] | None = None

    async def enqueue(self, job: NewJob) -> EnqueueResult:
        """Store one job. `QueueAtCapacity` and StoreError concern this job alone."""
        if self._busy:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[EnqueueResult] = loop.create_future()
            self._waiting.append(Waiting(job, future, loop.time() + self._storage.gives_up_after))
            return await future
        self._busy = True
        try:
            return (await enqueue_with_retry(self._storage, [job]))[0]
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
            placed = await enqueue_with_retry(self._storage, [each.job for each in batch], batch[0].until)
        except NotReached as error:
            self._give_up(batch, error)
        except QueueAtCapacity as full:
            await self._settle_full([each for each in batch if each.job.queue == full.queue])
            await self._settle([each for each in batch if each.job.queue != full.queue])
        except Exception:
            for each in batch:
                await self._settle_one(each)
        else:
            for each, place in zip(batch, placed, strict=True):
                if not each.placed.done():
                    each.placed.set_result(place)

    def _give_up(self, batch: Sequence[Waiting], error: NotReached) -> None:
        """The store was not reached until the time of the first was over; the others wait on."""
        now = asyncio.get_running_loop().time()
        for each in batch:
            if each.until <= now:
                _fail(each, NotReached(str(error)).at(error.place))
        self._waiting = [each for each in batch if not each.placed.done()] + self._waiting

    async def _settle_full(self, batch: Sequence[Waiting]) -> None:
        """Jobs of a queue without room for all: one by one until it is full, then at once for all that it would hold to
        the same. Jobs of a lower priority might be dropped, those with a key might be duplicates: they are asked."""
        full: QueueAtCapacity | None = None
        floor = 0
        for each in batch:
            if full is not None and each.job.priority >= floor and each.job.unique_key is None:
                _fail(each, QueueAtCapacity(full.queue, full.max_depth, waits=full.waits))
            elif isinstance(error := await self._settle_one(each), QueueAtCapacity):
                full, floor = error, each.job.priority

    async def _settle_one(self, each: Waiting) -> Exception | None:
        try:
            (placed,) = await enqueue_with_retry(self._storage, [each.job], each.until)
        except Exception as error:
            _fail(each, error)
            return error
        if not each.placed.done():
            each.placed.set_result(placed)
        return None


def _fail(each: Waiting, error: Exception) -> None:
    if not each.placed.done():
        each.placed.set_exception(error)


async def enqueue_with_retry(
    storage: Storage, jobs: Sequence[NewJob], until: float | None = None
) -> list[EnqueueResult]:
    """Enqueue in one call. A broken connection leaves open whether it took hold; ids make repeating safe: rows that ended
    stay, hidden, for ten minutes, so a repeated enqueue finds its first self. `until`: when to give up; without it, when
    the store would for a call that begins now."""
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), 0.05
    trouble: BaseException | None = None
    if until is None:
        try:
            return await _tried(storage, jobs)  # the store keeps the limit itself
        except ConnectionError as error:
            trouble, until = error, began + storage.gives_up_after
    while True:
        try:
            async with asyncio.timeout_at(until):
                return await _tried(storage, jobs)
        except ConnectionError as error:
            trouble = error
        except TimeoutError as error:
            trouble = trouble or error
        left = until - loop.time()
        if left <= 0:
            raise NotReached(
                f"the {storage.name} store was not reached for {storage.gives_up_after:.0f} s: {trouble or 'no answer'}; "
                "whether the last try was stored is not known, and repeating the same calls within ten minutes is safe"
            ).at(storage.place) from trouble
        await asyncio.sleep(min(pause * random.uniform(0.5, 1), left))
        pause = min(pause * 2, 1.0)


async def _tried(storage: Storage, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    try:
        return await storage.enqueue(jobs)
    except MissingParent as orphan:
        raise explain_missing_parent(orphan, jobs) from None
    except (ConnectionError, PerdureError, QueueAtCapacity):
        raise
    except Exception as error:
        raise StoreError(
            f"the {storage.name} store refused the jobs: {type(error).__name__}: {error}; nothing was stored"
        ) from error


async def wait_for_room(storage: Storage, pause: float) -> None:
    """Wait until a full queue may have room: some job ended, or the pause is over."""
    stir = asyncio.Event()
    stop = storage.listen("changed", stir.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may lose a cancellation on Python 3.11
                await stir.wait()
    finally:
        stop()
