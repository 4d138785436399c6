"""Brings a source to rest: nobody works on it or begins to, while it is copied and afterwards.

Its queues are paused. The target knows which of them were paused before: their settings are copied before the first one
is paused. So a run that was killed is not mistaken for a pause that somebody wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.clock import SECOND, boottime
from ..core.job import State
from ..errors import StoreError
from ..observe.queue_names import queue_rows
from ..storage.contract import Filter, Storage, WorkerRow
from .checksum import Told
from .entities import QUEUES

ALIVE = 60 * SECOND  # a worker sends a heartbeat every ten seconds
SIGN = "promote-"  # how the "worker" is named by which a move finds out that two addresses lead to one store
LOOK_AGAIN = 0.2  # seconds
RUNNING = Filter(states=(State.RUNNING,))


class Quiesce:
    """The quiet of one source, for the time of one move."""

    def __init__(self, source: Storage, target: Storage) -> None:
        self._source = source
        self._target = target
        self._to_resume: list[str] = []

    async def begin(self, wait: float, told: Told) -> None:
        """Carry the queues, pause the source, and wait until nobody works on it; what was left to do for jobs that wait for
        others is done then. StoreError when somebody still works."""
        if wait <= 0:
            await refuse_if_busy(self._source)
        settings = [row.settings for row in await queue_rows(self._source)]
        here = {queue.name: queue.paused for queue in settings}
        there = await _pause_all(self._target)
        carried_before = here.keys() <= there.keys()  # a run that was killed may have paused the source
        before = there if carried_before else here
        self._to_resume = [name for name in here if not before[name]]
        await QUEUES.bring(self._target, settings)
        for name in here:
            await self._source.pause(name, True)
        until = boottime() + wait
        while boottime() < until and await reason_busy(self._source) is not None:
            told("waiting for workers to stop and jobs to end", 0, 0)
            await asyncio.sleep(LOOK_AGAIN)
        await refuse_if_busy(self._source)
        while await self._source.resolve_edges(self._source.chunk):  # a report that is under way is no part of a job
            told("letting followers go", 0, 0)

    async def stay(self) -> None:
        """Pause what has come since, and leave it all so."""
        for name, paused in (await _pause_all(self._source)).items():
            if not paused:
                await self._source.pause(name, True)

    async def give_up(self) -> None:
        """Let the source go on as before."""
        for name in self._to_resume:
            await self._source.pause(name, False)


async def _pause_all(store: Storage) -> dict[str, bool]:
    return {row.settings.name: row.settings.paused for row in await queue_rows(store)}


async def refuse_if_busy(source: Storage) -> None:
    found = await reason_busy(source)
    if found is not None:
        raise StoreError(
            f"the source is in use: {found}; stop its workers, or say --wait SECONDS and stop them meanwhile"
        )


async def reason_busy(store: Storage) -> str | None:
    """Why the store is not at rest. A job whose lease has lapsed does not count: the target's workers bring it back."""
    workers = [row for row in await store.workers(ALIVE) if not row.id.startswith(SIGN)]
    running = await _running(store)
    told = [f"{running} running jobs" if running > 1 else "a running job"] if running else []
    return " and ".join([*_named(workers), *told]) or None


def _named(workers: Sequence[WorkerRow]) -> list[str]:
    if not workers:
        return []
    names = ", ".join(row.id for row in workers[:3]) + (", …" if len(workers) > 3 else "")
    return [f"{len(workers)} live workers ({names})" if len(workers) > 1 else f"a live worker ({names})"]


async def _running(store: Storage) -> int:
    now = await store.now()
    running, cursor = 0, None
    while True:
        page, cursor = await store.find(RUNNING, store.chunk, cursor)
        running += sum(record.leased_until is not None and record.leased_until > now for record in page)
        if cursor is None:
            return running
