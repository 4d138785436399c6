"""Lets the claim loop sleep, and lets the rest of the worker wake it.

A call of `wake` while the loop is awake has no effect: the loop looks for work before it sleeps again.
"""

from __future__ import annotations

import asyncio


class Wakeup:
    """One sleeper, any number of callers. All calls come from the same event loop."""

    def __init__(self) -> None:
        self.signals = 0  # how often somebody reported that the store may have jobs
        self._sleeper: asyncio.Future[None] | None = None

    @property
    def is_asleep(self) -> bool:
        return self._sleeper is not None and not self._sleeper.done()

    def wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def signal(self) -> None:
        """Wake the sleeper because the store may have jobs."""
        self.signals += 1
        self.wake()

    async def sleep(self, seconds: float) -> None:
        """Sleep until somebody calls `wake`, but at most this long."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._sleeper
        finally:
            timer.cancel()
            self._sleeper = None
