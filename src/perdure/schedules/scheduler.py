"""The loop that fires schedules, in every worker.

It asks the store only when a schedule is due. Every ten seconds, and when a signal says that a schedule was written, it
reads the schedules and notes when each is due. At such an instant it fires what is due, unless another worker has. If
there are more schedules than one answer holds, it asks at every full second instead, which is when ticks are. On a store
without schedules it asks once in ten seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ..core.clock import SECOND, boottime
from ..errors import PerdureError
from ..observe import log
from ..storage.contract import KvEntry, Storage
from .firing import fire
from .reconcile import readable, reconcile, write_to_revive
from .schedule import KIND, WAKE, Schedule, next_after

LOOK = 10 * SECOND
AHEAD = 3600 * SECOND  # a last tick that is further ahead than this: the clock went back
SPREAD = 0.02  # seconds over which workers come to the same tick
AFTER_OTHERS = (0.05, 0.25)  # seconds to leave much work to those who were quicker

Answer = Callable[[Awaitable[float]], Awaitable[float]]  # waits for an answer, but not for ever


class Scheduler:
    """Fires what is due, and stores what code declares."""

    def __init__(
        self, store: Storage, declared: Mapping[str, Schedule], known: Collection[str], answer: Answer
    ) -> None:
        self._store = store
        self._answer = answer
        self._declared = declared
        self._known = known
        self._stir = asyncio.Event()
        self._due: dict[str, tuple[int, Schedule]] = {}
        self._too_many = False
        self._look_at = 0  # by the store's clock, as far as we know it
        self._ahead: set[str] = set()
        self._offset = 0

    async def begin(self) -> None:
        """Bring the stored schedules in line with the code."""
        await reconcile(self._store, self._declared, self._known)

    async def run(self, stopping: asyncio.Event) -> None:
        unlisten = self._store.listen("ready", self._signalled, frozenset({WAKE}))
        try:
            while not stopping.is_set():
                await self._rest(await self._answer(self.step()))
        finally:
            unlisten()

    def wake(self) -> None:
        """Whoever stops the loop wakes it."""
        self._stir.set()

    async def step(self) -> float:
        """Look around and fire, as is due; seconds until the next step."""
        now = await self._store.now()
        self._offset = now - int(boottime() * SECOND)
        if now >= self._look_at or self._look_at > now + LOOK:
            await self._look(now)
        if self._too_many or any(at <= now for at, _ in self._due.values()):
            fired = await fire(self._store, now, self._known)
            self._pass(now)
            if fired.again:
                return 0 if fired.jobs else random.uniform(*AFTER_OTHERS)
        return self._pause(now)

    def _signalled(self) -> None:
        self._look_at = 0
        self._stir.set()

    async def _look(self, now: int) -> None:
        self._look_at = now + LOOK
        rows = await self._store.kv_read(KIND, limit=self._store.chunk)
        self._too_many = len(rows) >= self._store.chunk
        found = [(row, schedule) for row in rows if (schedule := readable(row)) is not None]
        self._due = {row.name: (row.due_at, schedule) for row, schedule in found if row.due_at is not None}
        self._warn_of_ticks_ahead(found, now)
        back = [(row, it) for row, it in found if it.orphan == "away" and row.name in self._declared]
        if back:
            await self._store.kv_write([write_to_revive(row.name, orphan, row.version) for row, orphan in back])
            self._look_at = 0

    def _pass(self, now: int) -> None:
        """What was due has been fired, by us or another: it is due next at its next tick."""
        for name, (at, schedule) in list(self._due.items()):
            if at > now:
                continue
            try:
                following = next_after(schedule, now)
            except PerdureError:  # logged when it was to be fired
                following = None
            if following is None:
                del self._due[name]
            else:
                self._due[name] = (following, schedule)

    def _pause(self, now: int) -> float:
        """Until the next instant that is worth a question."""
        if self._too_many:
            return (SECOND - now % SECOND) / SECOND + random.uniform(0, SPREAD)
        soonest = min((at for at, _ in self._due.values()), default=self._look_at)
        passed = int(boottime() * SECOND) + self._offset - now
        return max(0.0, (min(soonest, self._look_at) - now - passed) / SECOND) + random.uniform(0, SPREAD)

    async def _rest(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._stir.wait()
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(0)
        self._stir.clear()

    def _warn_of_ticks_ahead(self, found: Sequence[tuple[KvEntry, Schedule]], now: int) -> None:
        ahead = {row.name for row, schedule in found if schedule.last is not None and schedule.last > now + AHEAD}
        if ahead - self._ahead:
            log.ticks_ahead(sorted(ahead - self._ahead))
        self._ahead = ahead
