"""Records the names of the queues that a worker or a pull claims jobs from, so that they are listed when empty."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ...core.record import Record
from ...observe.queue_names import record_queues
from ...storage.contract import Storage
from ..service import first_of


class SeenQueues:
    """A name is written when its first job is claimed here, and never again by this worker."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._seen: set[str] = set()
        self._unwritten: set[str] = set()
        self._appeared = asyncio.Event()

    def note(self, records: Iterable[Record]) -> None:
        """These jobs were claimed."""
        if new := {record.queue for record in records} - self._seen:
            self._seen |= new
            self._unwritten |= new
            self._appeared.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write names as they appear, the last ones at the stop."""
        while not stopping.is_set():
            if not self._unwritten:
                await first_of(stopping, self._appeared)
            self._appeared.clear()
            await self._write_some()

    async def write(self) -> None:
        """Write all names that are not written yet."""
        while self._unwritten:
            await self._write_some()

    @property
    def unwritten(self) -> bool:
        return bool(self._unwritten)

    async def _write_some(self) -> None:
        names = sorted(self._unwritten)[: self._store.chunk]
        if names:
            await record_queues(self._store, names)
            self._unwritten.difference_update(names)
