"""One timer for the timeouts of all attempts: a comparison per job instead of a timer per job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .attempt import Attempt

AGAIN = 1.0  # a coroutine that swallowed its cancellation is told again this often


class Deadlines:
    """Calls `overdue(attempt)` when an attempt has run for its timeout."""

    def __init__(self, overdue: Callable[[Attempt], None]) -> None:
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._until: dict[Attempt, float] = {}
        self._next = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: Attempt) -> None:
        """The attempt begins now. May be called from any thread."""
        timeout = attempt.record.timeout
        if timeout is not None:
            deadline = self._loop.time() + timeout / 1_000_000
            self._until[attempt] = deadline
            if deadline < self._next:
                self._loop.call_soon_threadsafe(self._set, deadline)

    def forget(self, attempt: Attempt) -> None:
        self._until.pop(attempt, None)

    def close(self) -> None:
        self._until.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, deadline: float) -> None:
        if deadline >= self._next:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        self._timer = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        self._timer, self._next = None, float("inf")
        for attempt in [attempt for attempt, deadline in list(self._until.items()) if deadline <= now]:
            self._until[attempt] = now + AGAIN
            self._overdue(attempt)
        if self._until:
            self._set(min(list(self._until.values())))
