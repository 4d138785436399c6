"""Renews the leases of everything that a worker holds, every third of a lease, and stops handlers whose hold is gone.

It renews until the store has confirmed an end, not until the end is sent. Between renewals it asks once a second whether the
holds of longer-running handlers are still valid, so that a handler learns of a cancellation within about a second, however
long its lease is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from ...core.clock import boottime
from ...core.job import Loss
from ...core.record import Record
from ...observe import log
from ...storage.contract import LOSS_OF, Started, Storage, Verdict
from ..claiming.answer_timeout import AnswerTimeout
from ..completion_queue import CompletionQueue
from ..running.attempt import Attempt
from ..service import sleep
from .held_jobs import HeldJobs

LONGEST_SLEEP = 0.25
SHORTEST_SLEEP = 0.02  # seconds; a stored lease may be next to nothing
SHORTEST_ANSWER = 0.3
CHECK_EVERY = 1.0  # seconds between two checks of holds that are not due for renewal
BLOCKED_FOR = 1.0  # a loop that wakes this much late was blocked


class LeaseKeeper:
    """Renews in batches, and limits how long a lease is trusted. `lease` replaces the lease of each job."""

    def __init__(
        self,
        store: Storage,
        held: HeldJobs,
        completions: CompletionQueue,
        reached: Callable[[], None],
        recently_long: deque[Record],
        lease: int | None = None,
    ) -> None:
        self._store = store
        self._held = held
        self._completions = completions
        self._reached = reached
        self._recently_long = recently_long
        self._lease = lease
        self._check_at = 0.0
        self._timeout = AnswerTimeout(store.answer_timeout)

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            if not len(self._held):
                await self._wait_for_jobs(stopping)
                continue
            pause = self._pause()
            before = monotonic()
            await sleep(stopping, pause)
            self._warn_when_blocked(monotonic() - before - pause)
            try:
                await self.renew()
                await self._check_holds()
            finally:
                self._distrust()  # most of all when nobody answers

    async def _wait_for_jobs(self, stopping: asyncio.Event) -> None:
        """Wait until something is held: an idle worker does not even have a timer here."""
        self._held.filled.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (stopping, self._held.filled)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def renew(self) -> None:
        await self.renew_these(self._held.due_for_renewal(boottime()))

    async def renew_these(self, attempts: list[Attempt]) -> None:
        for start in range(0, len(attempts), self._store.chunk):
            await self._renew(attempts[start : start + self._store.chunk])

    async def _check_holds(self) -> None:
        """Whether handlers that have run for a while still hold their jobs."""
        now = boottime()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY
        begun_before = now - CHECK_EVERY / 2
        running = [each for each in self._held.at_work() if each.lost is None and each.started_boot < begun_before]
        for start in range(0, len(running), self._store.chunk):
            attempts = running[start : start + self._store.chunk]
            verdicts = await self._timeout.answer(
                self._store.check([attempt.record.hold for attempt in attempts]), self._longest()
            )
            self._reached()
            for attempt, verdict in zip(attempts, verdicts, strict=True):
                self._judge(attempt, verdict)

    async def _renew(self, attempts: list[Attempt]) -> None:
        asked_at = boottime()
        started = [
            Started(attempt.record.hold, attempt.started_at)
            for attempt in attempts
            if attempt.started_at is not None and not attempt.started_noted
        ]
        holds = [attempt.record.hold for attempt in attempts]
        verdicts = await self._timeout.answer(self._store.renew(holds, started, lease=self._lease), self._longest())
        self._reached()
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            if verdict.refusal is None:
                attempt.started_noted = attempt.started_at is not None
                attempt.trust(asked_at)
            self._judge(attempt, verdict)

    def _judge(self, attempt: Attempt, verdict: Verdict) -> None:
        if verdict.refusal is not None:
            attempt.renew_at = float("inf")
            self._completions.lose(attempt, LOSS_OF.get(verdict.refusal, Loss.ERROR))

    def _distrust(self) -> None:
        """The store did not answer for so long that another worker may hold these jobs by now."""
        for attempt in self._held.out_of_trust(boottime()):
            if attempt.lost is None:
                self._completions.lose(attempt, Loss.ERROR)

    def _longest(self) -> float:
        """How long an answer may take so that there is time for another try before the lease ends. A job with a very
        short lease cannot be kept, and must not cost the others their leases."""
        shortest = self._held.shortest_lease()
        return float("inf") if shortest is None else max(shortest / 3, SHORTEST_ANSWER)

    def _pause(self) -> float:
        shortest = self._held.shortest_lease()
        return LONGEST_SLEEP if shortest is None else max(SHORTEST_SLEEP, min(LONGEST_SLEEP, shortest / 10))

    def _warn_when_blocked(self, late: float) -> None:
        if late > BLOCKED_FOR:
            running = [attempt.record for attempt in self._held.where(_on_loop)]
            suspects = [*self._recently_long, *running[:5]]
            log.loop_blocked(late, [f"{record.task} {record.id}" for record in suspects])
        self._recently_long.clear()


def _on_loop(attempt: Attempt) -> bool:
    return attempt.slot is not None or (attempt.batch is not None and not attempt.ended)
