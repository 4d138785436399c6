"""Runs calls into a driver so that no cancellation reaches them.

A driver that is cancelled in the middle of a call can lose one of its locks for good, or leave half an answer on a
connection. So each call runs in a task of its own, to its end, and gives back its connection or session there. A caller who
is cancelled stops waiting at once; the call goes on without it.

A call that does not end within `limit` seconds means that the driver itself is stuck: `stuck` is called, and replaces the
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class GivenUp(ConnectionError):
    """The client of this call was replaced before the call ended. Whether it took effect is not known."""


class DriverCalls:
    """The calls that run on one client in one event loop."""

    def __init__(self, limit: float | None = None, stuck: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._stuck = stuck
        self._running: dict[asyncio.Task[Any], float] = {}  # since when; the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._running)

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end. A cancellation ends the wait, not the call."""
        loop = asyncio.get_running_loop()
        before = _cancellations()
        task = loop.create_task(call)
        self._running[task] = loop.time()
        if self._timer is None and self._limit is not None:
            self._timer = loop.call_later(self._limit, self._check)
        task.add_done_callback(self._finish)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and _cancellations() == before:
                raise GivenUp("the connection to the server was given up") from None
            raise

    async def finish(self) -> None:
        """Wait for the calls that run now."""
        while self._running:
            await asyncio.wait(list(self._running))

    def give_up(self) -> None:
        """Cancel all calls: their client is no longer used."""
        for task in list(self._running):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    def _check(self) -> None:
        self._timer = None
        if not self._running or self._limit is None:
            return
        loop = asyncio.get_running_loop()
        left = next(iter(self._running.values())) + self._limit - loop.time()
        if left <= 0:
            self._stuck()
        else:
            self._timer = loop.call_later(left, self._check)


def _cancellations() -> int:
    """How often the caller was cancelled so far."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
