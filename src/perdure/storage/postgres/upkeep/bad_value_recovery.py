"""Recovers when a statement fails because of a stored value: finds the value, sets its row aside, and has the statement
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import Any

from ..connection.server import Server
from ..reading.records import Flawed
from ..writing.apply import Effects
from .inspection import FIRST, Inspection
from .unreadable import Aside

LOOKED_AT = 2_000  # jobs at once
LOOKS_FOR = 5.0  # seconds
LONGEST_PAUSE = 60.0  # seconds between searches for one error that found nothing
MANY = 100  # errors that are remembered

Inspect = Callable[..., Coroutine[Any, Any, tuple[int, str | None]]]


class Cause:
    """The searches of one loop. Many callers may ask at once: one of them looks."""

    def __init__(
        self, aside: Aside, inspection: Inspection, server: Callable[[], Server], now: Callable[[], int | None]
    ) -> None:
        self._aside = aside
        self._inspection = inspection
        self._server = server
        self._now = now
        self._looking = asyncio.Lock()
        self._in_vain: dict[str, tuple[float, float]] = {}  # error: when to look again, and the pause until then
        self.removed = 0  # how often jobs were set aside

    async def remove(self, error: Exception) -> bool:
        """Remove what this error comes from; gives whether the work is worth another try."""
        if isinstance(error, Flawed):
            await self.set_aside(error.ids, Effects())
            return True
        removed = self.removed
        async with self._looking:
            if self.removed != removed:
                return True
            message = f"{type(error).__name__} {error}"
            again_at, pause = self._in_vain.get(message, (0.0, 0.5))
            if monotonic() < again_at:
                return False
            if await self._look():
                self.removed += 1
                self._in_vain.clear()
                return True
            pause = min(2 * pause, LONGEST_PAUSE)
            if len(self._in_vain) >= MANY:
                self._in_vain.clear()
            self._in_vain[message] = (monotonic() + pause, pause)
            return False

    async def set_aside(self, ids: Sequence[str], effects: Effects) -> None:
        """Set aside those of these jobs that cannot be read."""
        self.removed += 1  # at once: who claimed one of them meanwhile is to look again
        await self._server().directly(lambda connection: self._aside.sort_out(connection, ids, self._now(), effects))

    async def _look(self) -> bool:
        """Look at what is configured, at jobs that wait or run, and at last at all jobs, for a moment."""
        server, inspection = self._server(), self._inspection
        found = await server.directly(lambda connection: inspection.inspect_tables(connection, self._now()))
        until = monotonic() + LOOKS_FOR
        found += await self._look_through(inspection.inspect_live, until)
        return bool(found or await self._look_through(inspection.inspect_next, until))

    async def _look_through(self, inspect: Inspect, until: float) -> int:
        found = 0
        behind: str | None = FIRST
        while True:
            work = partial(inspect, behind=behind, limit=LOOKED_AT, now=self._now(), effects=Effects())
            more, behind = await self._server().directly(work)
            found += more
            if behind is FIRST or monotonic() >= until:
                return found
