"""Group commit: single jobs that are enqueued while a call to the store is under way are stored together by the next call.

A lone job is stored at once. No caller suffers from another's job: when a call with several jobs fails, each is tried
alone. While the store is down or busy, all callers wait together, and each gets its error when its own time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from ..core.backoff import RetryDelay
from ..core.record import NewJob
from ..errors import PerdureError, StoreError, StoreUnavailable
from ..storage.contract import EnqueueResult, MissingParent, QueueAtCapacity, Storage
from ..storage.rules.records import explain_missing_parent


class NotReached(StoreUnavailable):
    """The store did not accept the jobs before the time of the call was over."""


class Waiting(NamedTuple):
    job: NewJob
    result: asyncio.Future[EnqueueResult]
    until: float  # by the loop's clock; then its caller gets an error


class GroupCommit:
    """The way of jobs into the store of one event loop."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._busy = False
        self._waiting: list[Waiting] = []
        self._drain: asyncio.Task[None] | None = None

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store these jobs, all or none. A single job may share its call to the store with those of other callers."""
        if len(jobs) > 1:
            return await enqueue_with_retry(self._storage, jobs)
        if self._busy:
            return [await self._wait_in_group(jobs[0])]
        self._busy = True
        began = asyncio.get_running_loop().time()
        try:
            return await self._storage.enqueue(jobs)
        except ConnectionError as error:
            return await _retry(self._storage, jobs, error, began + self._storage.gives_up_after)
        except Exception as error:
            _raise_explained(self._storage, jobs, error)
        finally:
            self._next()

    async def close(self) -> None:
        while self._drain is not None and not self._drain.done():
            await asyncio.wait([self._drain])

    def _wait_in_group(self, job: NewJob) -> asyncio.Future[EnqueueResult]:
        loop = asyncio.get_running_loop()
        waiting = Waiting(job, loop.create_future(), loop.time() + self._storage.gives_up_after)
        self._waiting.append(waiting)
        return waiting.result

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
                await self._enqueue_batch([each for each in batch if not each.result.done()])
        finally:
            self._busy = False
            for each in self._waiting:
                each.result.cancel()
            self._waiting = []

    async def _enqueue_batch(self, batch: Sequence[Waiting]) -> None:
        """Store a batch. If that fails, find out whose job is at fault."""
        if len(batch) < 2:
            for each in batch:
                await self._enqueue_alone(each)
            return
        try:
            results = await enqueue_with_retry(self._storage, [each.job for each in batch], batch[0].until)
        except NotReached as error:
            self._give_up(batch, error)
        except QueueAtCapacity as full:
            await self._fill_queue([each for each in batch if each.job.queue == full.queue])
            await self._enqueue_batch([each for each in batch if each.job.queue != full.queue])
        except Exception:
            for each in batch:
                await self._enqueue_alone(each)
        else:
            for each, result in zip(batch, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)

    def _give_up(self, batch: Sequence[Waiting], error: NotReached) -> None:
        """The store was not reached before the time of the first caller was over. The others go on waiting."""
        now = asyncio.get_running_loop().time()
        for each in batch:
            if each.until <= now:
                _fail(each, NotReached(str(error)).at(error.place))
        self._waiting = [each for each in batch if not each.result.done()] + self._waiting

    async def _fill_queue(self, batch: Sequence[Waiting]) -> None:
        """Store jobs of a queue without room for all, one by one until it is full. Then refuse the others without asking
        the store, except jobs of a lower priority, which may be dropped, and jobs with a key, which may be duplicates."""
        full: QueueAtCapacity | None = None
        floor = 0
        for each in batch:
            if full is not None and each.job.priority >= floor and each.job.unique_key is None:
                _fail(each, QueueAtCapacity(full.queue, full.max_depth, waits=full.waits))
            elif isinstance(error := await self._enqueue_alone(each), QueueAtCapacity):
                full, floor = error, each.job.priority

    async def _enqueue_alone(self, each: Waiting) -> Exception | None:
        try:
            (result,) = await enqueue_with_retry(self._storage, [each.job], each.until)
        except Exception as error:
            _fail(each, error)
            return error
        if not each.result.done():
            each.result.set_result(result)
        return None


def _fail(each: Waiting, error: Exception) -> None:
    if not each.result.done():
        each.result.set_exception(error)


async def enqueue_with_retry(
    storage: Storage, jobs: Sequence[NewJob], until: float | None = None
) -> list[EnqueueResult]:
    """Enqueue in one call, and again after a broken connection. `until`: when to give up; without it, after the time that
    the store itself would take."""
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(until):
            return await _try_enqueue(storage, jobs)
    except (ConnectionError, TimeoutError) as error:
        return await _retry(storage, jobs, error, began + storage.gives_up_after if until is None else until)


async def _retry(storage: Storage, jobs: Sequence[NewJob], trouble: Exception, until: float) -> list[EnqueueResult]:
    """Enqueue again after a failure that leaves open whether the jobs were stored. Their ids make that safe: ended rows
    stay, hidden, for ten minutes, so a repeated enqueue finds them."""
    loop = asyncio.get_running_loop()
    delay = RetryDelay(first=0.05, longest=1.0)
    while (left := until - loop.time()) > 0:
        await asyncio.sleep(min(delay.next(), left))
        try:
            async with asyncio.timeout_at(until):
                return await _try_enqueue(storage, jobs)
        except ConnectionError as error:
            trouble = error
        except TimeoutError:
            pass  # the connection error before it says more
    raise NotReached(
        f"the {storage.name} store was not reached for {storage.gives_up_after:.0f} s: {trouble or 'no answer'}; "
        "whether the last try was stored is not known, and repeating the same calls within ten minutes is safe"
    ).at(storage.place) from trouble


async def _try_enqueue(storage: Storage, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    try:
        return await storage.enqueue(jobs)
    except ConnectionError:
        raise
    except Exception as error:
        _raise_explained(storage, jobs, error)


def _raise_explained(storage: Storage, jobs: Sequence[NewJob], error: Exception) -> NoReturn:
    """Raise the error of a store in terms of the caller."""
    if isinstance(error, MissingParent):
        raise explain_missing_parent(error, jobs) from None
    if isinstance(error, PerdureError | QueueAtCapacity):
        raise error
    raise StoreError(
        f"the {storage.name} store refused the jobs: {type(error).__name__}: {error}; nothing was stored"
    ) from error


async def wait_for_room(storage: Storage, pause: float) -> None:
    """Wait until a full queue may have room: some job ended, or the pause is over."""
    changed = asyncio.Event()
    stop = storage.listen("changed", changed.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for may lose a cancellation on Python 3.11
                await changed.wait()
    finally:
        stop()
