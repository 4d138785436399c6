"""Writes the row by which other processes see a worker: what it is, how many handlers run, what ended lately."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from ...errors import StoreError
from ...observe import log
from ...storage.contract import Storage, WorkerRow
from ..claiming.answer_timeout import AnswerTimeout
from ..completion_queue import CompletionQueue
from ..options import WorkerOptions
from ..running.slots import Slots
from ..service import rest

BEAT = 10.0  # seconds between two heartbeats
CHECK_EVERY = 2.0  # seconds after which a heartbeat is due if the number of running handlers changed
REMOVE_WITHIN = 5.0  # seconds in which the row is removed at a stop


class Heartbeat:
    """The row of one worker. `known_tasks` returns the names of the tasks that are declared by now."""

    def __init__(
        self,
        store: Storage,
        options: WorkerOptions,
        slots: Slots,
        completions: CompletionQueue,
        *,
        tasks: Sequence[str] | None,
        known: Collection[str],
        known_tasks: Callable[[], Collection[str]],
        started_at: int,
    ) -> None:
        self._store = store
        self._options = options
        self._slots = slots
        self._completions = completions
        self._known = frozenset(known)
        self._known_tasks = known_tasks
        self._late: set[str] = set()  # tasks that were declared after the start, and are in the log
        self._started_at = started_at
        self._first: asyncio.Future[None] | None = None
        self.about = _describe(options, tasks, known)

    async def write_first(self) -> None:
        self._first = asyncio.ensure_future(self._store.heartbeat(self.row()))
        await asyncio.shield(self._first)

    async def take_back_first(self) -> None:
        """The start failed. The first row may be stored or about to be: a cancelled call to the store goes on without its
        caller."""
        if self._first is not None:
            await asyncio.wait([self._first], timeout=1.0)
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        with suppress(StoreError):
            await self._store.remove_worker(self._options.id)

    async def remove(self) -> None:
        try:
            async with asyncio.timeout(REMOVE_WITHIN):
                await self._store.remove_worker(self._options.id)
        except Exception as error:
            log.service_failed("goodbye of the worker", error)

    async def run(self, stopping: asyncio.Event) -> None:
        timeout = AnswerTimeout(self._store.answer_timeout)
        written_at, running = monotonic(), 0
        check_every = min(CHECK_EVERY, BEAT)
        while not await rest(stopping, check_every):
            now = monotonic()
            if now - written_at > BEAT - check_every / 2 or self._slots.running != running:
                written_at, running = now, self._slots.running
                self._log_late_tasks()
                await timeout.answer(self._store.heartbeat(self.row()))

    def row(self) -> WorkerRow:
        about = json.dumps({**self.about, "ended": self._completions.throughput.by_queue()})
        return WorkerRow(self._options.id, self._started_at, 0, self._slots.running, about)

    def _log_late_tasks(self) -> None:
        """A worker does not claim jobs of tasks that were declared after its start."""
        late = set(self._known_tasks()) - self._known - self._late
        if late and self._options.asked_tasks is None:
            log.tasks_came_late(self._options.id, sorted(late))
            self._late |= late


def _describe(options: WorkerOptions, tasks: Sequence[str] | None, known: Collection[str]) -> Mapping[str, object]:
    return {
        "version": importlib.import_module(__name__.partition(".")[0]).__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "queues": options.queues,
        "tasks": tasks,
        "known": None if tasks is None or len(tasks) == len(known) else sorted(known),  # if it takes fewer
        "concurrency": options.concurrency,
    }
