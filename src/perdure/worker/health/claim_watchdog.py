"""The watch: a worker proves that it still claims, not only that it is alive.

A worker with room for jobs asks for some at least once per poll. When nobody has answered for much longer, the watch says so
in the log. When that goes on beyond what any question may take, something in this process must be stuck, and the watch mends
one thing after the other: it starts the pump anew; then it replaces the store's connections as well; and when claims stay
unanswered although the server was reached over the new connections, only a restart of the process helps, and `stuck` says
so. A store that is down or refuses is not mended here: its errors show that this process works. The watch also has the
worker look for attempts that nothing works on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from ...errors import PerdureError
from ...observe import log
from ..claiming.answer_timeout import LONGEST
from ..claiming.claim_loop import ClaimLoop
from ..service import Service, rest

TICK = 1.0
LATE = 1.0  # a watch that wakes this much late has nothing to say: the whole loop stood still
UNANSWERED = 6.0  # seconds beyond the poll after which claims count as unanswered
STUCK = LONGEST + 20.0  # seconds beyond the poll after which the pump is started anew
RECONNECTED_WITHIN = 30.0  # seconds that the store gets to reach its server over new connections
TURNED_WITHIN = 5.0  # seconds without a turn of the loop after which it counts as blocked


class ClaimWatchdog:
    """Looks at the pump once a second. `pumping` is the service that runs it; `reconnect` replaces the connections."""

    def __init__(
        self,
        pump: ClaimLoop,
        poll: float,
        pumping: Service,
        reconnect: Callable[[], Awaitable[None]],
        take_in_orphans: Callable[[], None],
    ) -> None:
        self._pump = pump
        self._poll = poll
        self._pumping = pumping
        self._reconnect = reconnect
        self._take_in_orphans = take_in_orphans
        self._since = self._turned_at = monotonic()
        self._told_at: float | None = None
        self._restarts = 0  # of the pump, since a claim was answered
        self._reconnecting: asyncio.Task[None] | None = None
        self._reconnected = False  # and the server was reached
        self.stuck = False  # only a restart of the process helps

    async def run(self, stopping: asyncio.Event) -> None:
        while not await rest(stopping, TICK):
            now = monotonic()
            if now - self._turned_at > TICK + LATE or not self._pump.wants_jobs:
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
        if self._told_at is not None and self._pump.answered_at <= self._told_at:
            return False
        return self.unanswered_for <= self._poll + UNANSWERED

    @property
    def turns(self) -> bool:
        """Whether the event loop turns."""
        return monotonic() - self._turned_at <= TURNED_WITHIN

    def _look(self, silent: float) -> None:
        if self._told_at is not None and self._pump.answered_at > self._told_at:
            log.claims_answered_again()
            self._told_at = None
            self._restarts, self._reconnected, self.stuck = 0, False, False
        if silent > self._poll + UNANSWERED and self._told_at is None:
            self._told_at = monotonic()
            log.claims_unanswered(silent)
        if silent > self._poll + STUCK:
            self._mend(silent)

    def _mend(self, silent: float) -> None:
        refused = self._pumping.refused_at > monotonic() - silent  # the store has spoken
        self._since = monotonic()
        if not refused:
            self._restarts += 1
            if self._reconnected:
                self._give_up(silent)
            elif self._restarts > 1 and self._reconnecting is None:
                self._reconnecting = asyncio.create_task(self._replace_connections(), name="perdure reconnect")
        log.claim_loop_restarted(silent)
        self._pumping.start_anew()

    def _give_up(self, silent: float) -> None:
        if not self.stuck:
            log.only_a_restart_helps(silent)
        self.stuck = True

    async def _replace_connections(self) -> None:
        log.connections_replaced()
        try:
            async with asyncio.timeout(RECONNECTED_WITHIN):
                await self._reconnect()
            self._reconnected = True
        except (PerdureError, OSError) as error:  # a timeout is one, too
            log.store_out_of_reach("watch", error)
        finally:
            self._reconnecting = None
