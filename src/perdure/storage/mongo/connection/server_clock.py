"""The store's clock: the server's clock, counted on by this machine's steady clock.

The server tells its time in milliseconds, and asking costs a round trip. So the store measures how far the server's clock
is ahead when it opens and every few seconds, and counts microseconds in between. A measurement that agrees within its own
error changes nothing, so that time does not flicker; if the server's clock is set, the store follows within seconds. Small
corrections never let time go back. If this machine's own clock agrees with the server's, as it does when both use NTP, it
is used instead: then an instant that a worker reads itself is never later than the store's next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.core.clock import SECOND, SYSTEM, boottime

AGAIN = 10 * SECOND  # microseconds after which the server is asked again
TICK = 1_000  # what a server's answer leaves open
FIRST = 3  # measurements to begin with, of which the quickest counts


class ServerClock:
    """Reads the server's time. `ask` returns it in microseconds, cut to milliseconds."""

    def __init__(self, ask: Callable[[], Awaitable[int]]) -> None:
        self._ask = ask
        self._ahead: int | None = None  # the server's clock minus ours
        self._measured = 0
        self._last = 0

    def __call__(self) -> int:
        now = _steady() + (self._ahead or 0)
        if now < self._last < now + SECOND:
            return self._last
        self._last = now
        return now

    async def follow(self) -> None:
        """Ask the server if the last measurement is old."""
        if self._ahead is not None and _steady() - self._measured < AGAIN:
            return
        measured = [await self._measure() for _ in range(1 if self._ahead is not None else FIRST)]
        error, ahead = min(measured)
        shown = SYSTEM.micros() - _steady()
        if abs(ahead - shown) <= error + TICK:
            self._ahead = shown
        elif self._ahead is None or abs(ahead - self._ahead) > error + TICK:
            self._ahead = ahead
        self._measured = _steady()

    async def _measure(self) -> tuple[int, int]:
        """How far the measurement may be off, and how far the server is ahead."""
        asked = _steady()
        told = await self._ask()
        answered = _steady()
        return (answered - asked) // 2, told + TICK // 2 - (asked + answered) // 2


def _steady() -> int:
    return int(boottime() * SECOND)
