"""Ends attempts at their timeouts, with one timer for all: a job costs a comparison instead of a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...core.clock import boottime
from ..leases.held_jobs import HeldJobs
from .attempt import Attempt

NEVER = float("inf")
AGAIN = 1.0  # seconds between two cancellations of a coroutine that swallowed the first


class Deadlines:
    """Calls `overdue(attempt)` when an attempt has run for its timeout, and every second from then on."""

    def __init__(self, held: HeldJobs, overdue: Callable[[Attempt], None]) -> None:
        self._held = held
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._next = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: Attempt) -> None:
        """The attempt has just started. May be called from any thread."""
        deadline = deadline_of(attempt)
        if deadline < self._next:
            self._loop.call_soon_threadsafe(self._set, deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, deadline: float) -> None:
        if deadline >= self._next:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - boottime()), self._fire)

    def _fire(self) -> None:
        now = boottime()
        self._timer, self._next = None, NEVER
        for attempt in self._held.at_work():
            deadline = deadline_of(attempt)
            if deadline <= now:
                self._overdue(attempt)
                deadline = now + AGAIN
            self._set(deadline)


def deadline_of(attempt: Attempt) -> float:
    timeout = attempt.record.timeout
    return NEVER if timeout is None or attempt.untimed else attempt.started_boot + timeout / 1_000_000
