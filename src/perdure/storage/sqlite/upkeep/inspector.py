"""Inspects the rows of a store a few at a time, and searches for a value that a statement could not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from perdure.core.clock import MicrosReader

from ..connection.writer import Writer
from . import inspection

SEARCHED_AT_ONCE = 2_000  # jobs
SEARCH_SECONDS = 5.0
LONGEST_PAUSE = 60.0  # seconds between two searches that find nothing


class Inspector:
    """Belongs to one opened store. It remembers how far it has come."""

    def __init__(self, database: Callable[[], Writer], now: MicrosReader) -> None:
        self._database = database
        self._now = now
        self._inspected: int | None = None  # the last row that was inspected; None: none was
        self._swept = inspection.FIRST  # the last row whose indexed columns were compared with its state
        self._searching = asyncio.Lock()
        self._successes = 0  # searches that have found something
        self._not_before = self._pause = 0.0

    async def inspect(self, limit: int) -> int:
        """Inspect the next rows; returns how many were set aside or put right."""
        now, database = self._now(), self._database()
        if self._inspected is None:
            self._inspected = self._swept = await database.read(inspection.random_start)
        read = partial(inspection.flawed_after, number=self._inspected, limit=limit, now=now, live=False)
        flawed, self._inspected = await database.read(read)
        misplaced, strays, self._swept = await database.read(partial(inspection.sweep, number=self._swept))
        found = await self._mend(list(dict.fromkeys([*flawed, *misplaced])), now)
        if strays:
            found += await database.write(lambda work: inspection.remove_stray_bodies(work, strays, now))
        return found

    async def find_cause(self) -> bool:
        """After a value could not be read: search for it among jobs that have not ended and in the small tables, then for a
        moment among all jobs. Whether something was found. If many callers ask at once, one of them searches."""
        successes = self._successes
        async with self._searching:
            if self._successes != successes:
                return True
            if monotonic() < self._not_before:
                return False
            if await self._search():
                self._successes += 1
                self._pause = 0.0
                return True
            self._pause = min(max(1.0, 2 * self._pause), LONGEST_PAUSE)
            self._not_before = monotonic() + self._pause
            return False

    async def _search(self) -> bool:
        now, until = self._now(), monotonic() + SEARCH_SECONDS
        for live in (True, False):
            cursor, more = inspection.FIRST, True
            while more and monotonic() < until:
                read = partial(inspection.flawed_after, number=cursor, limit=SEARCHED_AT_ONCE, now=now, live=live)
                flawed, cursor = await self._database().read(read)
                more = cursor != inspection.FIRST
                if await self._mend(flawed, now):
                    return True
        return False

    async def _mend(self, numbers: Sequence[int], now: int) -> int:
        """Mend these jobs and the small tables; returns how many rows were set aside or put right."""
        database = self._database()
        found = 0
        if await database.read(lambda connection: inspection.any_flawed(connection, now)):
            found += await database.write(lambda work: inspection.inspect_tables(work, now))
        if numbers:
            found += await database.write(lambda work: inspection.inspect_jobs(work, numbers, now))
        return found
