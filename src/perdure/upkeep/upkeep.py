"""The round of upkeep: about three questions in four seconds, so that an idle worker costs the store next to nothing.

Every round looks for lapsed leases. Every other one does a chore as well, in turns: edges that are unsettled, expired jobs,
answers that were not heard, promotion, pruning. (A claim promotes due jobs by itself; this is for workers whose slots are
full.) Where jobs are known to expire, or to be kept for a short time only, the rounds between look for those: who does not
use that pays nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from ..flow.answers import tell_due
from ..job import Record
from ..storage.contract import Storage
from .contact import Contact
from .expire import expire
from .reap import reap

ROUND = 2.4  # seconds
CLOCK_EVERY = 10  # rounds between looks at the store's clock while no lease has lapsed
FIRST_LOOKS = 2  # rounds in which it is looked at whether that clock moves at all
LIMIT = 500
REMEMBERED = 3600.0  # seconds after an expired job was found in which others are looked for often

Chore = Callable[[int], Awaitable[int]]
Sleep = Callable[[asyncio.Event, float], Awaitable[bool]]
Answer = Callable[[Awaitable[int]], Awaitable[int]]  # waits for an answer, but not for ever


class Upkeep:
    """Reaps in every round, and does a chore in every other one. `expiring`: whether jobs that may expire are known;
    `brief`: whether such that are kept for a short time; `ours`: who of the workers is here."""

    def __init__(
        self,
        store: Storage,
        contact: Contact,
        sleep: Sleep,
        answer: Answer,
        expiring: Callable[[], bool],
        brief: Callable[[], bool],
        ours: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._contact = contact
        self._sleep = sleep
        self._answer = answer
        self._expiring = expiring
        self._brief = brief
        self._ours = ours
        self._found_expired = -REMEMBERED
        self._round = 0
        settle = store.settle
        self._chores: tuple[Chore, ...] = (
            settle,
            store.prune,  # early: a worker may live for seconds only
            settle,
            self._expire,
            settle,
            lambda limit: tell_due(store, limit),
            settle,
            store.promote,
            settle,
            self._expire,
        )
        self._chore = 0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            again = await self.one_round()
            await self._sleep(stopping, 0.01 if again else ROUND)

    async def one_round(self) -> bool:
        """True when there is more of the same to do."""
        try:
            return await self._looked_after()
        except Exception:
            self._contact.lost()
            raise

    async def _looked_after(self) -> bool:
        self._round += 1
        again = await self._answer(self._reap()) >= LIMIT
        self._contact.reached()
        if self._round % 2 == 0:
            expired = self._may_expire() and await self._has_more(self._expire)
            pruned = self._brief() and await self._has_more(self._store.prune)
            return expired or pruned or again
        if await self._has_more(self._chores[self._chore]):
            return True
        self._chore = (self._chore + 1) % len(self._chores)
        return again

    async def _has_more(self, chore: Chore) -> bool:
        done = await self._answer(chore(LIMIT))
        self._contact.reached()
        return done >= LIMIT

    def _may_expire(self) -> bool:
        return self._expiring() or monotonic() - self._found_expired < REMEMBERED

    async def _expire(self, limit: int) -> int:
        expired = await expire(self._store, limit)
        if expired:
            self._found_expired = monotonic()
        return expired

    async def _reap(self) -> int:
        """Before anybody is reaped the store's clock is looked at: leases that all lapse at once may be its doing."""
        if self._round <= FIRST_LOOKS or self._round % CLOCK_EVERY == 1:
            await self._look_at_clock()
        records = await self._store.lapsed(LIMIT, self._contact.unbroken)
        if not records:
            return 0
        await self._look_at_clock()
        trusted = 3 * self._contact.unbroken
        lost = [record for record in records if record.lease <= trusted and self._is_lost(record)]
        return await reap(self._store, lost)

    def _is_lost(self, record: Record) -> bool:
        """A clock that is moved by hand ends the leases of our own jobs too, and we are there."""
        return not self._contact.by_hand or not self._ours(record.leased_by or "")

    async def _look_at_clock(self) -> None:
        self._contact.saw_clock(await self._store.now())
