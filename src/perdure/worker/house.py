"""The upkeep of a program that pulls. Where no worker runs, pullers bring the jobs of dead ones back themselves, and do
what else any worker does for all.

It goes on from pull to pull: what is due is done by whichever is there, be it open for a moment or for hours. A gap between
two of them is a gap in the contact with the store, as for any worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Protocol
from weakref import WeakKeyDictionary

from ..errors import StoreError
from ..storage.contract import Storage
from ..upkeep.contact import Contact
from ..upkeep.upkeep import ROUND, Upkeep
from .patience import Patience
from .service import Service, rest, sleep

LONGEST_ROUND = 300.0  # seconds that one question of the upkeep may take


class Place(Protocol):
    """An event loop's share of an app."""

    storage: Storage


def upkeep_of(
    store: Storage,
    contact: Contact,
    ours: Callable[[str], bool],
    expiring: Callable[[], bool] = lambda: False,
    brief: Callable[[], bool] = lambda: False,
) -> Upkeep:
    """The upkeep of a store, which waits for its answers, but not for ever."""
    patience = Patience(4 * store.answers_within, LONGEST_ROUND)
    return Upkeep(store, contact, rest, patience.answer, expiring, brief, ours)


class House:
    """Of one store and loop, kept by all pulls that are open."""

    def __init__(self, store: Storage) -> None:
        self._contact = Contact()
        self._pulls: set[str] = set()
        self._upkeep = upkeep_of(store, self._contact, ours=self._pulls.__contains__)
        self._due_at = monotonic() + ROUND
        self._timer: asyncio.TimerHandle | None = None
        self._service: Service | None = None

    @staticmethod
    def of(place: Place) -> House:
        house = _houses.get(place)
        if house is None:
            house = _houses[place] = House(place.storage)
        return house

    def enter(self, pull: str) -> None:
        """A pull begins; it says `leave` in the end."""
        if not self._pulls:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._due_at - monotonic()), self._begin)
        self._pulls.add(pull)

    def reached(self) -> None:
        """The store has answered a pull."""
        self._contact.reached()

    async def leave(self, pull: str) -> None:
        self._pulls.discard(pull)
        if self._pulls:
            return
        if self._timer is not None:
            self._timer.cancel()
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
        elif monotonic() >= self._due_at:  # they come and go so quickly that nobody is there when it is
            with suppress(StoreError):
                await self._one_round()

    def _begin(self) -> None:
        self._service = Service("upkeep", self._keep)
        self._service.start()

    async def _keep(self, stopping: asyncio.Event) -> None:
        while not await sleep(stopping, self._due_at - monotonic()):
            await self._one_round()

    async def _one_round(self) -> None:
        self._due_at = monotonic() + ROUND
        again = await self._upkeep.look()
        self._due_at = monotonic() + (0.0 if again else min(ROUND, self._upkeep.pause))


_houses: WeakKeyDictionary[Place, House] = WeakKeyDictionary()
