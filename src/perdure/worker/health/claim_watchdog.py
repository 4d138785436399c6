"""Checks that the claims of a worker are answered, not only that the worker is alive.

A worker with room for jobs claims at least once per poll. When no claim has been answered for much longer, the watchdog
logs it. When that lasts longer than any call may take, something in this process must be stuck, and the watchdog tries
one repair after the other: it restarts the claim loop; then it also replaces the connections of the store. If claims stay
unanswered although the server was reached over the new connections, only a restart of the process helps, and `stuck` is
true. A store that is down or refuses is not repaired here: its errors show that this process works. Once a second the
watchdog also lets the worker hand back attempts that nothing works on.
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
LATE = 1.0  # seconds; a watchdog that wakes up this late says nothing: the whole event loop was blocked
UNANSWERED = 6.0  # seconds beyond the poll after which claims count as unanswered
STUCK = LONGEST + 20.0  # seconds beyond the poll after which the claim loop is restarted
RECONNECTED_WITHIN = 30.0  # seconds that the store gets to reach its server over new connections
TURNED_WITHIN = 5.0  # seconds without a turn of the event loop after which it counts as blocked


class ClaimWatchdog:
    """Checks the claim loop once a second. `service` runs it; `reconnect` replaces the connections."""

    def __init__(
        self,
        claim_loop: ClaimLoop,
        poll: float,
        service: Service,
        reconnect: Callable[[], Awaitable[None]],
        hand_back_orphans: Callable[[], None],
    ) -> None:
        self._claim_loop = claim_loop
        self._poll = poll
        self._service = service
        self._reconnect = reconnect
        self._hand_back_orphans = hand_back_orphans
        self._since = self._turned_at = monotonic()
        self._logged_at: float | None = None
        self._restarts = 0  # of the claim loop, since a claim was answered
        self._reconnecting: asyncio.Task[None] | None = None
        self._reconnected = False  # and the server was reached
        self.stuck = False  # only a restart of the process helps

    async def run(self, stopping: asyncio.Event) -> None:
        while not await rest(stopping, TICK):
            now = monotonic()
            if now - self._turned_at > TICK + LATE or not self._claim_loop.wants_jobs:
                self._since = now
            self._turned_at = now
            self._check(self.unanswered_for)
            self._hand_back_orphans()

    @property
    def unanswered_for(self) -> float:
        """Seconds for which claims should have been answered and were not."""
        return monotonic() - max(self._since, self._claim_loop.answered_at)

    @property
    def claims(self) -> bool:
        """Whether claims are answered, as far as any are made."""
        if self._logged_at is not None and self._claim_loop.answered_at <= self._logged_at:
            return False
        return self.unanswered_for <= self._poll + UNANSWERED

    @property
    def turns(self) -> bool:
        """Whether the event loop turns."""
        return monotonic() - self._turned_at <= TURNED_WITHIN

    def _check(self, silent: float) -> None:
        if self._logged_at is not None and self._claim_loop.answered_at > self._logged_at:
            log.claims_answered_again()
            self._logged_at = None
            self._restarts, self._reconnected, self.stuck = 0, False, False
        if silent > self._poll + UNANSWERED and self._logged_at is None:
            self._logged_at = monotonic()
            log.claims_unanswered(silent)
        if silent > self._poll + STUCK:
            self._repair(silent)

    def _repair(self, silent: float) -> None:
        refused = self._service.refused_at > monotonic() - silent  # the store answered with an error
        self._since = monotonic()
        if not refused:
            self._restarts += 1
            if self._reconnected:
                self._give_up(silent)
            elif self._restarts > 1 and self._reconnecting is None:
                self._reconnecting = asyncio.create_task(self._replace_connections(), name="perdure reconnect")
        log.claim_loop_restarted(silent)
        self._service.restart()

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
