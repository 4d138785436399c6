"""The round of upkeep: about three questions in four seconds, so that an idle worker costs the store next to nothing.

Every round looks for lapsed leases. Every other one does a chore as well, in turns: edges that are unsettled, expired jobs,
answers that were not heard, promotion, pruning. (A claim promotes due jobs by itself; this is for workers whose slots are
full.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..flow.answers import tell_due
from ..storage.contract import Storage
from .contact import Contact
from .expire import expire
from .reap import reap

ROUND = 2.4  # seconds
CLOCK_EVERY = 10  # rounds between looks at the store's clock while no lease has lapsed
LIMIT = 500

Sleep = Callable[[asyncio.Event, float], Awaitable[bool]]
Answer = Callable[[Awaitable[int]], Awaitable[int]]  # waits for an answer, but not for ever


class Upkeep:
    """Reaps in every round, and does a chore in every other one."""

    def __init__(self, store: Storage, contact: Contact, sleep: Sleep, answer: Answer) -> None:
        self._store = store
        self._contact = contact
        self._sleep = sleep
        self._answer = answer
        self._round = 0
        settle = store.settle
        self._chores: tuple[Callable[[int], Awaitable[int]], ...] = (
            settle,
            lambda limit: expire(store, limit),
            settle,
            lambda limit: tell_due(store, limit),
            settle,
            store.promote,
            settle,
            store.prune,
        )
        self._chore = 0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                again = await self.one_round()
            except Exception:
                self._contact.lost()
                raise
            await self._sleep(stopping, 0.01 if again else ROUND)

    async def one_round(self) -> bool:
        """True when there is more of the same to do."""
        self._round += 1
        again = await self._answer(self._reap()) >= LIMIT
        self._contact.reached()
        if self._round % 2:
            return again
        done = await self._answer(self._chores[self._chore](LIMIT))
        self._contact.reached()
        if done >= LIMIT:
            return True
        self._chore = (self._chore + 1) % len(self._chores)
        return again

    async def _reap(self) -> int:
        """Before anybody is reaped the store's clock is looked at: leases that all lapse at once may be its doing."""
        if self._round % CLOCK_EVERY == 1:
            await self._look_at_clock()
        records = await self._store.lapsed(LIMIT, self._contact.unbroken)
        if not records:
            return 0
        await self._look_at_clock()
        trusted = 3 * self._contact.unbroken
        return await reap(self._store, [record for record in records if record.lease <= trusted])

    async def _look_at_clock(self) -> None:
        self._contact.saw_clock(await self._store.now())
