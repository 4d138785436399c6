"""The round of upkeep: about three questions in four seconds, so that an idle worker costs the store next to nothing.

Every round looks when the next lease ends, and for lapsed leases if one may be over. If a lease ends before the next round
is due, there is a look at that moment, so that the jobs of a dead host come back right after their lease.

Every other round does a chore as well, in turns: edges that are unresolved, expired jobs, answers that were not heard,
promotion, pruning. (A claim promotes due jobs by itself; this is for workers whose slots are full.) One chore in ten also
inspects some rows, for those that cannot be read. Where jobs are known to expire, or to be kept for a short time only, the
rounds between look for those: who does not use that pays nothing for it.

The steps of a round are independent: one that fails rests for a while, longer each time, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from ..core.clock import SECOND
from ..core.lifecycle import Change, Expired, decide
from ..core.record import Record
from ..errors import IllegalMove, StoreUnavailable
from ..flow.answers import deliver_due
from ..observe import log
from ..storage.contract import Storage
from .reap import reap
from .store_contact import FOR_EVER, StoreContact

ROUND = 2.4  # seconds
WHOLE = 0.6  # of a round that is at least between two whole ones, however often leases are looked at
SOON = 100_000  # microseconds between two looks at leases, at least
AT_TIMES = 600_000  # microseconds between two looks that find nothing
CLOCK_EVERY = 10  # rounds between looks at the store's clock while no lease has lapsed
FIRST_LOOKS = 2  # rounds in which it is looked at whether that clock moves at all
LIMIT = 500
REMEMBERED = 3600.0  # seconds after an expired job was found in which others are looked for often

Chore = Callable[[int], Awaitable[int]]
SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds before a step that failed is tried again
Sleep = Callable[[asyncio.Event, float], Awaitable[bool]]
Answer = Callable[[Awaitable[int]], Awaitable[int]]  # waits for an answer, but not for ever


class Step:
    """One thing that upkeep does, and how long it rests after it failed."""

    def __init__(self, name: str, run: Chore, longest_pause: float = LONGEST_PAUSE) -> None:
        self.name = name
        self.run = run
        self._longest_pause = longest_pause
        self.paused_until = 0.0
        self._pause = 0.0

    def pause(self) -> float:
        """It failed: rest, longer each time. Gives for how long."""
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), self._longest_pause)
        self.paused_until = monotonic() + self._pause
        return self._pause

    def went_well(self) -> None:
        self._pause = self.paused_until = 0.0


class Upkeep:
    """Reaps in every round, and does a chore in every other one. `expiring`: whether jobs that may expire are known;
    `brief`: whether such that are kept for a short time; `ours`: who of the workers is here."""

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
        settle = Step("settling", store.resolve_edges)
        expiring_step = Step("expiring", self._expire)
        self._reaping = Step("reaping", self._reap, longest_pause=5.0)
        self._expiring_step = expiring_step
        self._pruning = Step("pruning", store.prune)
        promoting = Step("promoting", store.promote)
        self._chores: tuple[tuple[Step, ...], ...] = (
            (settle,),
            (self._pruning,),  # early: a worker may live for seconds only
            (settle,),
            (expiring_step,),
            (settle,),
            (Step("telling answers", lambda limit: deliver_due(store, limit)),),
            (settle,),
            (promoting, Step("inspecting", self._inspect)),
            (settle,),
            (expiring_step,),
        )
        self._chore = 0
        self._chore_has_more = False
        self._round_at = 0.0  # when the next whole round is due
        self.pause = ROUND  # seconds until the next look

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            again = await self.look()
            await self._sleep(stopping, 0.01 if again else self.pause)

    async def look(self) -> bool:
        """A whole round if one is due, else a look at leases alone. True when there is more of the same to do."""
        if monotonic() < self._round_at:
            return await self._one_round(())
        again = await self.one_round()
        self._round_at = 0.0 if again else monotonic() + WHOLE * ROUND
        return again

    async def one_round(self) -> bool:
        """True when there is more of the same to do."""
        self._round += 1
        if self._round % 2 == 0:
            return await self._one_round(self._steps_between())
        again = await self._one_round(self._chores[self._chore])
        if not self._chore_has_more:
            self._chore = (self._chore + 1) % len(self._chores)
        return again

    async def _one_round(self, steps: tuple[Step, ...]) -> bool:
        """Reap, and take these steps. One that fails stops no other. If there were several and all failed, the store is to
        blame, and the first error is raised."""
        self.pause = ROUND
        failed: dict[Step, Exception] = {}
        try:
            again = await self._do(self._reaping, failed)
            more = [await self._do(step, failed) for step in steps]
            if steps and len(failed) > len(steps):
                raise failed[self._reaping]
        except Exception:
            self._contact.lost()
            raise
        for step, error in failed.items():
            log.upkeep_failed(step.name, error, step.pause())
        self._chore_has_more = any(more)
        return again or any(more)

    def _steps_between(self) -> tuple[Step, ...]:
        """What is looked for between the chores, where it is known to be there."""
        expiring = (self._expiring_step,) if self._may_expire() else ()
        return (*expiring, self._pruning) if self._brief() else expiring

    async def _do(self, step: Step, failed: dict[Step, Exception]) -> bool:
        """Take one step; whether there is more of it to do."""
        if step.paused_until > monotonic():
            return False
        try:
            done = await self._answer(step.run(LIMIT))
        except (ConnectionError, StoreUnavailable):  # no other step would be answered either
            raise
        except Exception as error:
            failed[step] = error
            return False
        step.went_well()
        self._contact.reached()
        return done >= LIMIT

    def _may_expire(self) -> bool:
        return self._expiring() or monotonic() - self._found_expired < REMEMBERED

    async def _expire(self, limit: int) -> int:
        expired = await expire(self._store, limit)
        if expired:
            self._found_expired = monotonic()
        return expired

    async def _inspect(self, limit: int) -> int:
        """Look for rows that cannot be read. It never has more to do at once: the next round goes on."""
        await self._store.inspect(limit)
        return 0

    async def _reap(self, limit: int) -> int:
        """Before anybody is reaped the clock of the store is looked at: it may be why leases lapse all at once. If it went
        back, leases may reach too far: `lapsed` cuts them, so it is asked now and then in any case."""
        looked = self._round <= FIRST_LOOKS or self._round % CLOCK_EVERY == 1
        if looked:
            await self._look_at_clock()
        next_lapse = await self._store.next_lapse()
        if not looked and (next_lapse is None or next_lapse > 0):
            self._look_within(next_lapse)
            return 0
        records = await self._store.lapsed(limit, self._contact.proven)
        if not records:
            self._look_within(await self._lapses_in(next_lapse))
            return 0
        self._look_within(SOON)  # some may wait for others of their worker, or have more after them
        await self._look_at_clock()
        trusted = 3 * self._contact.proven
        lost = [record for record in records if record.lease <= trusted and self._is_lost(record)]
        return await reap(self._store, lost)

    async def _lapses_in(self, next_lapse: int | None) -> int | None:
        """How long to wait for a lease that is to be looked at, when none was found. One that is over may have to wait until
        we have reached the store for long enough. Some stores know only now that none was over."""
        if next_lapse is None or next_lapse > 0:
            return next_lapse
        if self._contact.proven < FOR_EVER and (over := await self._store.lapsed(1, FOR_EVER)):
            return min(self._contact.missing_for(over[0].lease), AT_TIMES)
        after = await self._store.next_lapse()
        return None if after is None else max(after, AT_TIMES)

    def _look_within(self, micros: int | None) -> None:
        """Look again after this time, or when the next round is due."""
        if micros is not None:
            self.pause = min(self.pause, max(micros, SOON) / SECOND)

    def _is_lost(self, record: Record) -> bool:
        """A clock that is moved by hand ends the leases of our own jobs too, and we are there."""
        return not self._contact.by_hand or not self._ours(record.leased_by or "")

    async def _look_at_clock(self) -> None:
        self._contact.saw_clock(await self._store.now())


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
