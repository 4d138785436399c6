"""The round of upkeep: about one question a second, so that an idle worker costs the store next to nothing.

Most rounds look for lapsed leases; some for edges that are unsettled, answers that were not heard, expired jobs, promotion
and pruning instead. (A claim promotes due jobs by itself; this is for workers whose slots are full.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..flow.answers import tell_due
from ..storage.contract import Storage
from .contact import Contact
from .expire import expire
from .reap import reap

ROUND = 1.1  # seconds
SETTLE_EVERY, ANSWER_EVERY, EXPIRE_EVERY, PROMOTE_EVERY, PRUNE_EVERY = 3, 4, 5, 7, 30
LIMIT = 500

Sleep = Callable[[asyncio.Event, float], Awaitable[bool]]
Answer = Callable[[Awaitable[int]], Awaitable[int]]  # waits for an answer, but not for ever


class Upkeep:
    """Reaps, expires, promotes and prunes, in turns."""

    def __init__(self, store: Storage, contact: Contact, sleep: Sleep, answer: Answer) -> None:
        self._store = store
        self._contact = contact
        self._sleep = sleep
        self._answer = answer
        self._round = 0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                again = await self.one_round()
            except Exception:
                self._contact.lost()
                raise
            await self._sleep(stopping, 0.01 if again else ROUND)

    async def one_round(self) -> bool:
        """One question. True when there is more of the same to do."""
        self._round += 1
        done = await self._answer(self._question())
        self._contact.reached()
        return done >= LIMIT

    async def _question(self) -> int:
        if self._round % SETTLE_EVERY == 1:
            return await self._store.settle(LIMIT)
        if self._round % ANSWER_EVERY == 0:
            return await tell_due(self._store, LIMIT)
        if self._round % PRUNE_EVERY == 0:
            return await self._store.prune(LIMIT)
        if self._round % PROMOTE_EVERY == 0:
            return await self._store.promote(LIMIT)
        if self._round % EXPIRE_EVERY == 0:
            return await expire(self._store, LIMIT)
        self._contact.saw_clock(await self._store.now())
        return await reap(self._store, self._contact.unbroken, LIMIT)
