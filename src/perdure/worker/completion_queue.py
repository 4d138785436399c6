"""The ends of attempts, from the end of the handler until the store confirms them.

Whoever ends an attempt (a slot, the lease keeper, a stopping worker) reports a decided change here. The claim loop takes the
changes out, sends them with its next exchange, and records the store's verdicts. A pull claim does the same with a writer of
its own. Until the store has answered, an attempt stays in `HeldJobs`, so its lease is renewed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from ..core.job import FINAL, Loss, State
from ..core.lifecycle import Change
from ..observe import log
from ..storage.contract import ACCEPTED, Verdict
from .claiming.wakeup import Wakeup
from .health.throughput import Throughput
from .leases.held_jobs import HeldJobs
from .running.attempt import Attempt, after_refusal, stop_change_of

if TYPE_CHECKING:
    from ..tasks.definition import TaskDefinition

End = tuple[Attempt, Change]

COLLECT_FOR = 0.010  # seconds that an end may wait for others while handlers run
WAKE_EVERY = 16  # ends: short jobs end every few microseconds, and each wake-up of the claim loop costs more than that


class CompletionQueue:
    """Ended attempts with their changes, in order."""

    def __init__(self, held: HeldJobs, wakeup: Wakeup) -> None:
        self._held = held
        self._wakeup = wakeup
        self._ends: deque[End] = deque()
        self._since = 0.0  # when the oldest end was reported; 0.0: send it at once
        self._confirming: dict[Attempt, asyncio.Future[Verdict | None]] = {}
        self._freed: set[TaskDefinition | None] = set()
        self.throughput = Throughput()

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def send_at(self) -> float:
        """When the oldest end must be sent, by the monotonic clock."""
        return self._since + COLLECT_FOR

    def attempts(self) -> Iterator[Attempt]:
        """Every attempt whose end waits to be sent."""
        return map(attempt_of, self._ends)

    # -- what ends an attempt ------------------------------------------------------------------------
    def report(self, attempt: Attempt, change: Change | None) -> None:
        """The attempt is over. None: the store has its end already, or its hold is gone and there is nothing to write."""
        definition = attempt.definition
        if attempt.record.limits is not None:
            self._freed.add(None)
        if definition is not None and definition.concurrency is not None:
            self._freed.add(definition)
            self._wakeup.wake()
        if change is None:
            if attempt.reported:  # its handler's transaction stored the end
                self.throughput.count([attempt])
            self.drop(attempt)
            return
        attempt.reported = True
        ends = self._ends
        if self._confirming and attempt in self._confirming:
            self._since = 0.0  # a handler waits for the verdict
            self._wakeup.wake()
        elif not ends:
            self._since = monotonic()
            self._wakeup.wake()
        elif len(ends) % WAKE_EVERY == 0:
            self._wakeup.wake()
        ends.append((attempt, change))

    def lose(self, attempt: Attempt, reason: Loss) -> None:
        """The hold is gone: stop the handler. An attempt that has not started never will."""
        if attempt.reported:
            return  # its end is on the way: the store's verdict on that decides
        if attempt.lose(reason):
            log.hold_lost(attempt.record, reason)
        if attempt.started_at is None:
            attempt.ended = True
            self.report(attempt, stop_change_of(attempt))

    def wake(self) -> None:
        """Let the claim loop look: the last handler may have ended."""
        self._wakeup.wake()

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt: nothing is left to write about it."""
        self._held.drop(attempt)
        self._resolve(attempt, None)
        self._wakeup.wake()

    # -- what waits for an end -----------------------------------------------------------------------
    def confirm(self, attempt: Attempt) -> asyncio.Future[Verdict | None]:
        """The store's verdict on the end of this attempt, which the caller is about to report."""
        confirmed: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        self._confirming[attempt] = confirmed
        return confirmed

    def take_freed(self) -> set[TaskDefinition | None]:
        """Tasks with a concurrency whose attempts ended since the last call; None stands for any job under a limit."""
        freed = self._freed
        if freed:
            self._freed = set()
        return freed

    # -- what sends the ends -------------------------------------------------------------------------
    def take(self, most: int) -> list[End]:
        """The next ends to send, at most one of each job."""
        ends = self._ends
        if not ends:
            return []
        self._since = monotonic()
        if len(ends) <= most and len({change.id for _, change in ends}) == len(ends):
            batch = list(ends)
            ends.clear()
            return batch
        batch = []
        seen: set[str] = set()
        for _ in range(min(len(ends), most)):
            attempt, change = ends.popleft()
            if change.id in seen:
                ends.append((attempt, change))
            else:
                seen.add(change.id)
                batch.append((attempt, change))
        return batch

    def put_back(self, batch: Sequence[End]) -> None:
        """These ends were not sent, or the store did not answer. They go first next time."""
        self._ends.extendleft(reversed(batch))

    def record_verdicts(self, batch: Sequence[End], verdicts: Sequence[Verdict]) -> None:
        """The store answered: these attempts are not held any more."""
        self._held.drop_all(batch)
        self.throughput.count([attempt for attempt, change in batch if change.state in FINAL])
        if verdicts.count(ACCEPTED) < len(batch):
            for end, verdict in zip(batch, verdicts, strict=True):
                self._follow_up(*end, verdict)
        if log.logs_successes():
            for (attempt, change), verdict in zip(batch, verdicts, strict=True):
                if verdict.refusal is None and change.state is State.SUCCEEDED:
                    log.attempt_succeeded(attempt.record, attempt.took)
        if self._confirming:
            for (attempt, _), verdict in zip(batch, verdicts, strict=True):
                self._resolve(attempt, verdict)

    def give_up(self, batch: Sequence[End], error: Exception) -> None:
        """These ends cannot be stored any more; whoever waits for a verdict gets the error."""
        for attempt, _ in batch:
            self.raise_to_caller(attempt, error)
            self.drop(attempt)

    def raise_to_caller(self, attempt: Attempt, error: Exception) -> None:
        """Let the error be raised where somebody waits for the verdict on this attempt."""
        confirmed = self._confirming.pop(attempt, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_exception(error)
            confirmed.exception()  # the caller that waited for it may be gone

    def _follow_up(self, attempt: Attempt, change: Change, verdict: Verdict) -> None:
        """The end of an attempt was refused. If the attempt still occupies a slot of a limit or a key, report those as
        free."""
        if verdict.refusal is None or change.state is None:
            return
        log.report_refused(attempt.record, verdict.refusal)
        last = after_refusal(attempt, change, verdict.refusal)
        if last is not None:
            self._ends.append((attempt, last))
            self._since = 0.0
            self._wakeup.wake()

    def _resolve(self, attempt: Attempt, verdict: Verdict | None) -> None:
        confirmed = self._confirming.pop(attempt, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(verdict)


attempt_of: Callable[[End], Attempt] = itemgetter(0)
change_of: Callable[[End], Change] = itemgetter(1)
