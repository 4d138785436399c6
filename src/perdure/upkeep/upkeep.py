"""Runs upkeep in rounds: about three calls to the store in four seconds, so that an idle worker costs next to nothing.

Every round asks when the next lease ends, and for lapsed leases if one may be over. If a lease ends before the next round
is due, upkeep checks at that moment, so that the jobs of a dead host come back right after their lease.

Every other round also does a chore, in turns: resolve edges, cancel expired jobs, deliver answers, promote, prune. (A
claim promotes due jobs by itself; this is for workers whose slots are full.) One chore in ten also inspects some rows, to
find those that cannot be read. If jobs are known to expire, or to be kept for a short time only, the rounds between check
for those. An app without such jobs pays nothing for it.

The steps of a round are independent. If one fails, upkeep skips it for a while, longer each time, and goes on with the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from ..core.clock import SECOND
from ..core.growing_pause import GrowingPause
from ..core.lifecycle import Change, Expired, decide
from ..core.record import Record
from ..errors import IllegalMove, StoreUnavailable
from ..flow.answers import deliver_due
from ..observe import log
from ..storage.contract import Storage
from .reap import reap
from .store_contact import FOR_EVER, StoreContact

ROUND = 2.4  # seconds
WHOLE = 0.6  # part of ROUND that lies at least between two whole rounds, however often leases are checked
SOON = 100_000  # microseconds between two checks of leases, at least
AT_TIMES = 600_000  # microseconds between two checks that find nothing
CLOCK_EVERY = 10  # rounds between two readings of the store's clock while no lease has lapsed
FIRST_ROUNDS = 2  # rounds that check whether that clock moves at all
LIMIT = 500
REMEMBERED = 3600.0  # seconds for which upkeep checks often after it found an expired job

Chore = Callable[[int], Awaitable[int]]
SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds before a step that failed is tried again
Sleep = Callable[[asyncio.Event, float], Awaitable[bool]]
Answer = Callable[[Awaitable[int]], Awaitable[int]]  # waits for an answer, but not for ever


class Step:
    """One thing that upkeep does, and for how long it is skipped after it failed."""

    def __init__(self, name: str, run: Chore, longest_pause: float = LONGEST_PAUSE) -> None:
        self.name = name
        self.run = run
        self.paused_until = 0.0
        self._pause = GrowingPause(SHORTEST_PAUSE, longest_pause, jitter=False)  # the log says how long it is

    def pause(self) -> float:
        """The step failed: skip it for a while, longer each time. Returns for how many seconds."""
        seconds = self._pause.next()
        self.paused_until = monotonic() + seconds
        return seconds

    def resume(self) -> None:
        """The step succeeded."""
        self._pause.reset()
        self.paused_until = 0.0


class Upkeep:
    """Reaps in every round, and does a chore in every other one.

    `expiring` says whether this process knows jobs that may expire, `brief` whether it knows jobs that are kept for a short
    time only, `ours` whether a worker of this name runs in this process."""

    def __init__(
        self,
        store: Storage,
        contact: StoreContact,
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
        resolving = Step("resolving edges", store.resolve_edges)
        expiring_step = Step("expiring", self._expire)
        self._reaping = Step("reaping", self._reap, longest_pause=5.0)
        self._expiring_step = expiring_step
        self._pruning = Step("pruning", store.prune)
        promoting = Step("promoting", store.promote)
        self._chores: tuple[tuple[Step, ...], ...] = (
            (resolving,),
            (self._pruning,),  # early: a worker may live for seconds only
            (resolving,),
            (expiring_step,),
            (resolving,),
            (Step("telling answers", lambda limit: deliver_due(store, limit)),),
            (resolving,),
            (promoting, Step("inspecting", self._inspect)),
            (resolving,),
            (expiring_step,),
        )
        self._chore = 0
        self._chore_has_more = False
        self._round_at = 0.0  # when the next whole round is due
        self.pause = ROUND  # seconds until the next check

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            again = await self.check()
            await self._sleep(stopping, 0.01 if again else self.pause)

    async def check(self) -> bool:
        """Do a whole round if one is due, else check leases alone. True when there is more of the same to do."""
        if monotonic() < self._round_at:
            return await self._one_round(())
        again = await self.one_round()
        self._round_at = 0.0 if again else monotonic() + WHOLE * ROUND
        return again

    async def one_round(self) -> bool:
        """Do a whole round. True when there is more of the same to do."""
        self._round += 1
        if self._round % 2 == 0:
            return await self._one_round(self._steps_between())
        again = await self._one_round(self._chores[self._chore])
        if not self._chore_has_more:
            self._chore = (self._chore + 1) % len(self._chores)
        return again

    async def _one_round(self, steps: tuple[Step, ...]) -> bool:
        """Reap, and run these steps. One that fails stops no other. If there were several and all failed, the store is the
        cause: raise the first error."""
        self.pause = ROUND
        failed: dict[Step, Exception] = {}
        try:
            again = await self._run_step(self._reaping, failed)
            more = [await self._run_step(step, failed) for step in steps]
            if steps and len(failed) > len(steps):
                raise failed[self._reaping]
        except Exception:
            self._contact.note_gap()
            raise
        for step, error in failed.items():
            log.upkeep_failed(step.name, error, step.pause())
        self._chore_has_more = any(more)
        return again or any(more)

    def _steps_between(self) -> tuple[Step, ...]:
        """What to do between the chores, for jobs that are known to exist."""
        expiring = (self._expiring_step,) if self._may_expire() else ()
        return (*expiring, self._pruning) if self._brief() else expiring

    async def _run_step(self, step: Step, failed: dict[Step, Exception]) -> bool:
        """Run one step. True when there is more of it to do."""
        if step.paused_until > monotonic():
            return False
        try:
            done = await self._answer(step.run(LIMIT))
        except (ConnectionError, StoreUnavailable):  # no other step would be answered either
            raise
        except Exception as error:
            failed[step] = error
            return False
        step.resume()
        self._contact.note_answer()
        return done >= LIMIT

    def _may_expire(self) -> bool:
        return self._expiring() or monotonic() - self._found_expired < REMEMBERED

    async def _expire(self, limit: int) -> int:
        expired = await expire(self._store, limit)
        if expired:
            self._found_expired = monotonic()
        return expired

    async def _inspect(self, limit: int) -> int:
        """Set rows aside that cannot be read. It never has more to do at once: the next round goes on."""
        await self._store.inspect(limit)
        return 0

    async def _reap(self, limit: int) -> int:
        """Bring lapsed jobs back. Before that, read the clock of the store: it may be why many leases lapse at once. If
        it went back, leases may reach too far; `lapsed` cuts them, so call it now and then in any case."""
        read_clock = self._round <= FIRST_ROUNDS or self._round % CLOCK_EVERY == 1
        if read_clock:
            await self._read_clock()
        next_lapse = await self._store.next_lapse()
        if not read_clock and (next_lapse is None or next_lapse > 0):
            self._check_within(next_lapse)
            return 0
        records = await self._store.lapsed(limit, self._contact.proven)
        if not records:
            self._check_within(await self._lapses_in(next_lapse))
            return 0
        self._check_within(SOON)  # some may wait for others of their worker, or have more after them
        await self._read_clock()
        trusted = 3 * self._contact.proven
        lost = [record for record in records if record.lease <= trusted and self._is_lost(record)]
        return await reap(self._store, lost)

    async def _lapses_in(self, next_lapse: int | None) -> int | None:
        """When to check again after no lapsed lease was found. A lease that is over may have to wait until this process has
        reached the store for long enough. Some stores know only now that none was over."""
        if next_lapse is None or next_lapse > 0:
            return next_lapse
        if self._contact.proven < FOR_EVER and (over := await self._store.lapsed(1, FOR_EVER)):
            return min(self._contact.missing_for(over[0].lease), AT_TIMES)
        after = await self._store.next_lapse()
        return None if after is None else max(after, AT_TIMES)

    def _check_within(self, micros: int | None) -> None:
        """Check again after this time, or when the next round is due."""
        if micros is not None:
            self.pause = min(self.pause, max(micros, SOON) / SECOND)

    def _is_lost(self, record: Record) -> bool:
        """A clock that a test moves by hand also ends the leases of workers in this process, which are alive."""
        return not self._contact.by_hand or not self._ours(record.leased_by or "")

    async def _read_clock(self) -> None:
        self._contact.note_clock(await self._store.now())


async def expire(store: Storage, limit: int) -> int:
    """Cancel jobs that were not started in time. Returns how many were cancelled."""
    changes: list[Change] = []
    for record in await store.expired(limit):
        try:
            changes.append(decide(record, Expired()))
        except IllegalMove:
            continue
    verdicts = await store.apply(changes) if changes else []
    return sum(verdict.accepted for verdict in verdicts)
