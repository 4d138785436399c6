"""Upkeep for programs that use pull claims: where no worker runs, they bring the jobs of dead workers back themselves.

It continues from one pull claim to the next: whichever is open does what is due, whether it is open for a moment or for
hours. A gap between two of them is a gap in the contact with the store, as for any worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from weakref import WeakKeyDictionary

from ..core.record import Record
from ..errors import StoreError
from ..observe import log
from ..storage.contract import Storage
from ..upkeep.store_contact import StoreContact
from ..upkeep.upkeep import ROUND, Upkeep
from .claiming.answer_timeout import AnswerTimeout
from .claiming.seen_queues import SeenQueues
from .host import LoopShare
from .service import Service, rest, sleep

NAMES_WITHIN = 5.0  # seconds that the end of a pull waits until the names of its queues are written
LONGEST_ROUND = 300.0  # seconds that one question of the upkeep may take


def upkeep_of(
    store: Storage,
    contact: StoreContact,
    ours: Callable[[str], bool],
    expiring: Callable[[], bool] = lambda: False,
    brief: Callable[[], bool] = lambda: False,
) -> Upkeep:
    """The upkeep of a store, with time limits for its calls."""
    timeout = AnswerTimeout(4 * store.answer_timeout, LONGEST_ROUND)
    return Upkeep(store, contact, rest, timeout.answer, expiring, brief, ours)


class PullUpkeep:
    """The upkeep of one store and event loop, shared by all open pull claims."""

    def __init__(self, store: Storage) -> None:
        self._contact = StoreContact()
        self._pulls: set[str] = set()
        self._upkeep = upkeep_of(store, self._contact, ours=self._pulls.__contains__)
        self._due_at = monotonic() + ROUND
        self._timer: asyncio.TimerHandle | None = None
        self._service: Service | None = None
        self._queues = SeenQueues(store)
        self._naming: asyncio.Task[None] | None = None  # writes the names of queues

    @staticmethod
    def of(share: LoopShare) -> PullUpkeep:
        upkeep = _of_share.get(share)
        if upkeep is None:
            upkeep = _of_share[share] = PullUpkeep(share.storage)
        return upkeep

    def enter(self, pull: str) -> None:
        """A pull claim begins; it calls `leave` in the end."""
        if not self._pulls:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._due_at - monotonic()), self._begin)
        self._pulls.add(pull)

    def note_answer(self) -> None:
        """The store has answered a pull claim."""
        self._contact.note_answer()

    def note_queues(self, records: Sequence[Record]) -> None:
        """A pull claim took these jobs: record the names of queues that are new here."""
        self._queues.note(records)
        if self._queues.unwritten and (self._naming is None or self._naming.done()):
            self._naming = asyncio.get_running_loop().create_task(self._write_names(), name="perdure queue names")

    async def _write_names(self) -> None:
        try:
            await self._queues.write()
        except Exception as error:  # the next claim tries it again
            log.service_failed("writing the names of queues", error)

    async def leave(self, pull: str) -> None:
        if self._naming is not None and not self._naming.done():
            await asyncio.wait([self._naming], timeout=NAMES_WITHIN)
        self._pulls.discard(pull)
        if self._pulls:
            return
        if self._timer is not None:
            self._timer.cancel()
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
        elif monotonic() >= self._due_at:  # pull claims so short that none is open when a round is due
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
        again = await self._upkeep.check()
        self._due_at = monotonic() + (0.0 if again else min(ROUND, self._upkeep.pause))


_of_share: WeakKeyDictionary[LoopShare, PullUpkeep] = WeakKeyDictionary()
