"""Waits for jobs to change. One watcher per event loop reads for all callers that wait there: one call to the store for many
jobs, when a signal arrives, and by a poll that gets slower the longer a job does not change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from ..core.record import Record
from ..errors import PerdureError, StoreError
from ..storage.contract import Storage

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.5
_SHARE = 4  # it sleeps four times as long as a read took, so that it does not load a busy store


class JobWatch:
    """One caller that waits for one job."""

    __slots__ = ("_future", "_mark", "due", "id", "pause")

    def __init__(self, id: str, now: float) -> None:
        self.id = id
        self.due = now
        self.pause = FIRST_PAUSE
        self._mark: object = self  # equal to nothing that a store returns
        self._future: asyncio.Future[Record | None] | None = None

    def waits(self) -> asyncio.Future[Record | None]:
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def see(self, record: Record | None, now: float) -> None:
        mark = record and (record.version, record.progress, record.started_at, record.state)
        future = self._future
        if future is None or future.done():
            return
        if mark == self._mark:
            self.pause = min(self.pause * 1.5, LONGEST_PAUSE)
        else:
            self._mark = mark
            self.pause = FIRST_PAUSE
            future.set_result(record)
        self.due = now + self.pause

    def fail(self, error: Exception) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)


class JobWatcher:
    """Reads jobs for all callers that wait in this event loop. Its task runs only while somebody waits."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._watches: set[JobWatch] = set()
        self._stir = asyncio.Event()
        self._all = False
        self._task: asyncio.Task[None] | None = None

    async def changes(self, id: str) -> AsyncGenerator[Record | None, None]:
        """The job at once, then at every change (None: it is gone), without end."""
        loop = asyncio.get_running_loop()
        watch = JobWatch(id, loop.time())
        self._watches.add(watch)
        try:
            while True:
                seen = watch.waits()
                watch.due = min(watch.due, loop.time() + watch.pause)
                self._work(loop)
                yield await seen
        finally:
            self._watches.discard(watch)
            self._stir.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for watch in self._watches:  # no task reads for them any more
            watch.fail(StoreError(f"the app was closed while job {watch.id} was waited for"))

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stir.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._read_while_watched(), name="perdure job watcher")

    async def _read_while_watched(self) -> None:
        loop = asyncio.get_running_loop()
        stop = self._storage.listen("changed", self._changed)
        try:
            while self._watches:
                self._stir.clear()
                began = loop.time()
                if due := self._due(began):
                    await self._read_jobs(due)
                now = loop.time()
                await asyncio.sleep((now - began) * _SHARE)
                await self._rest(loop)
        finally:
            stop()

    def _due(self, now: float) -> list[JobWatch]:
        whole, self._all = self._all, False
        return [watch for watch in self._watches if whole or watch.due <= now]

    async def _read_jobs(self, watches: Sequence[JobWatch]) -> None:
        chunk = self._storage.chunk
        for start in range(0, len(watches), chunk):
            part = watches[start : start + chunk]
            try:
                records = await self._storage.get([watch.id for watch in part])
            except ConnectionError:
                _look_later(part)  # a store that comes back is waited for, as long as the caller does
                continue
            except Exception as error:
                for watch in part:
                    watch.fail(_as_ours(error, self._storage))
                continue
            now = asyncio.get_running_loop().time()
            for watch, record in zip(part, records, strict=True):
                watch.see(record, now)

    async def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._watches or self._stir.is_set():
            return
        until = min(watch.due for watch in self._watches)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._stir.wait()

    def _changed(self) -> None:
        self._all = True
        self._stir.set()


def _look_later(watches: Sequence[JobWatch]) -> None:
    now = asyncio.get_running_loop().time()
    for watch in watches:
        watch.due = now + LONGEST_PAUSE


def _as_ours(error: Exception, storage: Storage) -> PerdureError:
    if isinstance(error, PerdureError):
        return error
    told = StoreError(f"the {storage.name} store cannot be read: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
