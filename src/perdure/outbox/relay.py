"""The relay: moves jobs from an outbox to their store, until it is told to stop.

Each round reads the first rows, enqueues them, deletes them, in this order: after a kill anywhere in between, the next
relay repeats the enqueue, and the store knows the ids. When either end is out of reach it tries again, ever more slowly,
for ever, with one line in the log when the trouble begins and one when it is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..observe import log
from ..storage.contract import Storage
from ..storage.outbox import Batch, Outbox, Poison, job_in
from .delivery import Delivery, Parcel
from .due_times import DueTimes

POLL = 1.0
FULL_FOR = 1.0  # seconds after which a full queue is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


class Relay:
    """One relay in one event loop. `outbox` and `store` give what is open there, or open it."""

    def __init__(
        self, outbox: Callable[[], Awaitable[Outbox]], store: Callable[[], Awaitable[Storage]], poll: float = POLL
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._poll = poll
        self._timing = DueTimes()
        self._full: dict[str, float] = {}  # queues without room, and when to ask again
        self._told_full: set[str] = set()
        self._wakeup = asyncio.Event()
        self._heard: Outbox | None = None
        self._unlisten: Callable[[], None] = _nothing
        self._trouble_since: float | None = None
        self._pause = FIRST_PAUSE
        self.moved = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Move what comes, until told to stop."""
        try:
            while not stopping.is_set():
                self._wakeup.clear()
                try:
                    again = await self.one_round()
                except Exception as error:
                    await self._rest(stopping, self._note_trouble(error), stirred=False)
                else:
                    self._note_recovery()
                    if not again:
                        await self._rest(stopping, self._poll * random.uniform(0.8, 1.0), stirred=True)
        finally:
            self._unlisten()
            self._heard = None

    async def once(self) -> None:
        """Move all that waits and can be moved."""
        while await self.one_round():
            pass

    async def one_round(self) -> bool:
        """Move one batch. True when there may be more at once."""
        outbox = await self._outbox()
        self._listen(outbox)
        loop = asyncio.get_running_loop()
        self._full = {queue: until for queue, until in self._full.items() if until > loop.time()}
        delivery: Delivery | None = None
        async with outbox.batch(await self._chunk(), list(self._full)) as batch:
            if batch is None or not batch.entries:
                return False
            delivery = await self._deliver(batch)
        # only now: an error inside would undo what was confirmed
        self._full |= dict.fromkeys(delivery.full, loop.time() + FULL_FOR)
        self._tell_full(delivery)
        self.moved += len(delivery.moved)
        if delivery.error is not None:
            raise delivery.error
        return bool(delivery.moved or delivery.refused)

    async def _deliver(self, batch: Batch) -> Delivery:
        store = await self._store()
        delivery = Delivery(store)
        try:
            now = await store.now()
        except Exception as error:
            delivery.error = error
            return delivery
        parcels, aside = self._read_entries(batch, now)
        await delivery.deliver(parcels)
        aside += delivery.refused
        await batch.confirm(delivery.moved, aside)
        for number, why in aside:
            log.set_aside(number, why)
        delivery.refused = aside
        return delivery

    def _read_entries(self, batch: Batch, now: int) -> tuple[list[Parcel], list[tuple[int, str]]]:
        """The jobs of a batch, and the rows that hold none."""
        parcels, poison = [], []
        for entry in batch.entries:
            try:
                parcels.append(Parcel(entry.number, self._timing.of(job_in(entry), entry.enqueued_at, now)))
            except Poison as error:
                poison.append((entry.number, str(error)))
        return parcels, poison

    async def _chunk(self) -> int:
        return (await self._store()).chunk

    def _tell_full(self, delivery: Delivery) -> None:
        """Once, until there was room for all."""
        if fresh := delivery.full - self._told_full:
            log.relay_found_full(sorted(fresh))
        self._told_full = (self._told_full - delivery.asked) | delivery.full

    # -- between the rounds --------------------------------------------------------------------------
    def _listen(self, outbox: Outbox) -> None:
        if outbox is not self._heard:
            self._unlisten()
            self._unlisten = outbox.listen(self._wakeup.set)
            self._heard = outbox

    def _note_trouble(self, error: Exception) -> float:
        if self._trouble_since is None:
            self._trouble_since = asyncio.get_running_loop().time()
            self._pause = FIRST_PAUSE
            log.relay_out_of_reach(error)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause * random.uniform(0.5, 1.0)

    def _note_recovery(self) -> None:
        if self._trouble_since is not None:
            log.relay_works_again(asyncio.get_running_loop().time() - self._trouble_since)
            self._trouble_since = None

    async def _rest(self, stopping: asyncio.Event, seconds: float, *, stirred: bool) -> None:
        """Until it is time, until told to stop, or until rows may have come."""
        events = [stopping, self._wakeup] if stirred else [stopping]
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*waiting, return_exceptions=True)


def _nothing() -> None: ...
