"""Logs the names of tasks whose jobs wait although no worker knows them: a task was renamed, or never imported."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from ...core.job import State
from ...observe import log
from ...observe.workers import fleet
from ...storage.contract import Filter, Storage
from ..service import rest

FIRST_CHECK = 5.0  # seconds after the start
CHECK_EVERY = 60.0
SAMPLE = 100  # waiting jobs that are checked, the newest


class UnknownTasks:
    """Checks the jobs that a worker leaves to others. Each task is logged once."""

    def __init__(self, store: Storage, worker: str, known: Collection[str], queues: Sequence[str] | None) -> None:
        self._store = store
        self._worker = worker
        self._known = frozenset(known)
        self._queues = queues
        self._logged: set[str] = set()

    async def run(self, stopping: asyncio.Event) -> None:
        pause = FIRST_CHECK
        while not await rest(stopping, pause):
            await self._check()
            pause = CHECK_EVERY

    async def _check(self) -> None:
        waiting, _ = await self._store.find(Filter(states=(State.READY,)), SAMPLE, None)
        unknown = {job.task for job in waiting if self._queues is None or job.queue in self._queues}
        unknown -= self._known | self._logged
        if unknown and (unknown := unknown - await self._known_to_others()):
            self._logged |= unknown
            log.unknown_tasks_wait(self._worker, sorted(unknown))

    async def _known_to_others(self) -> set[str]:
        lists = [member.about.get(name) for member in await fleet(self._store) for name in ("tasks", "known")]
        return {task for each in lists if isinstance(each, list) for task in each}
