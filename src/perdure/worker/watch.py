"""The watch: a worker proves that it still claims, not only that it is alive.

A worker with room for jobs asks for some at least once per poll. When nobody has answered for much longer, the watch says so
in the log. When that goes on beyond what any question may take, the pump itself must be stuck: it
is started anew. And it has the worker look for attempts that nothing works on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..observe import log
from .patience import LONGEST
from .pump import Pump
from .service import rest

TICK = 1.0
LATE = 1.0  # a watch that wakes this much late has nothing to say: the whole loop stood still
UNANSWERED = 6.0  # seconds beyond the poll after which claims count as unanswered
STUCK = LONGEST + 20.0  # seconds beyond the poll after which the pump is started anew
TURNED_WITHIN = 5.0  # seconds without a turn of the loop after which it counts as blocked


class Watch:
    """Looks at the pump once a second."""

    def __init__(
        self, pump: Pump, poll: float, restart: Callable[[], None], take_in_orphans: Callable[[], None]
    ) -> None:
        self._pump = pump
        self._poll = poll
        self._restart = restart
        self._take_in_orphans = take_in_orphans
        self._since = self._turned_at = monotonic()
        self._told = False

    async def run(self, stopping: asyncio.Event) -> None:
        while not await rest(stopping, TICK):
            now = monotonic()
            if now - self._turned_at > TICK + LATE or not self._pump.hungry:
                self._since = now
            self._turned_at = now
            self._look(self.unanswered_for)
            self._take_in_orphans()

    @property
    def unanswered_for(self) -> float:
        """Seconds for which claims should have been answered and were not."""
        return monotonic() - max(self._since, self._pump.answered_at)

    @property
    def claims(self) -> bool:
        """Whether claims are answered, as far as any are made."""
        return self.unanswered_for <= self._poll + UNANSWERED

    @property
    def turns(self) -> bool:
        """Whether the event loop turns."""
        return monotonic() - self._turned_at <= TURNED_WITHIN

    def _look(self, silent: float) -> None:
        if silent <= self._poll + UNANSWERED:
            if self._told:
                log.claims_answered_again()
            self._told = False
            return
        if not self._told:
            self._told = True
            log.claims_unanswered(silent)
        if silent > self._poll + STUCK:
            log.pump_started_anew(silent)
            self._since = monotonic()
            self._restart()
