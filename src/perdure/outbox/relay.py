"""The relay: moves jobs from an outbox to their store until it is stopped.

Each round reads the first rows, enqueues them and deletes them, in this order. After a kill at any moment the next relay
repeats the enqueue, and the store knows the ids. When either database is out of reach, the relay tries again with growing
delays, without end. It logs one line when the trouble begins and one when it is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..core.backoff import RetryDelay
from ..observe import log
from ..storage.contract import Storage
from ..storage.outbox import Batch, Outbox, Poison, job_in
from .delivery import Delivery, Parcel
from .due_times import DueTimes

POLL = 1.0
FULL_FOR = 1.0  # seconds after which a full queue is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


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
        self._logged_full: set[str] = set()
        self._wakeup = asyncio.Event()
        self._listening_to: Outbox | None = None
        self._unlisten: Callable[[], None] = _nothing
        self._trouble_since: float | None = None
        self._delay = RetryDelay(FIRST_PAUSE, LONGEST_PAUSE)
        self.moved = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Move jobs until `stopping` is set."""
        try:
            while not stopping.is_set():
                self._wakeup.clear()
                try:
                    again = await self.one_round()
                except Exception as error:
                    await self._rest(stopping, self._note_trouble(error), woken=False)
                else:
                    self._note_recovery()
                    if not again:
                        await self._rest(stopping, self._poll * random.uniform(0.8, 1.0), woken=True)
        finally:
            self._unlisten()
            self._listening_to = None

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
        self._log_full(delivery)
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

    def _log_full(self, delivery: Delivery) -> None:
        """Log full queues, once until there was room for all."""
        if fresh := delivery.full - self._logged_full:
            log.relay_found_full(sorted(fresh))
        self._logged_full = (self._logged_full - delivery.asked) | delivery.full

    # -- between the rounds --------------------------------------------------------------------------
    def _listen(self, outbox: Outbox) -> None:
        if outbox is not self._listening_to:
            self._unlisten()
            self._unlisten = outbox.listen(self._wakeup.set)
            self._listening_to = outbox

    def _note_trouble(self, error: Exception) -> float:
        if self._trouble_since is None:
            self._trouble_since = asyncio.get_running_loop().time()
            self._delay.reset()
            log.relay_out_of_reach(error)
        return self._delay.next()

    def _note_recovery(self) -> None:
        if self._trouble_since is not None:
            log.relay_works_again(asyncio.get_running_loop().time() - self._trouble_since)
            self._trouble_since = None

    async def _rest(self, stopping: asyncio.Event, seconds: float, *, woken: bool) -> None:
        """Wait until the time is over, `stopping` is set, or a signal says that rows may have come."""
        events = [stopping, self._wakeup] if woken else [stopping]
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*waiting, return_exceptions=True)


def _nothing() -> None: ...
