"""Reports ends one by one after the store could not store a batch of them. The bad change becomes the failure of its own
job."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ...core.clock import MicrosReader
from ...core.lifecycle import Change, decide
from ...errors import StoreError
from ...observe import log
from ...storage.contract import Verdict
from ..completion_queue import CompletionQueue, End
from ..running.attempt import failure_of

Apply = Callable[[Sequence[Change]], Awaitable[Sequence[Verdict]]]


class SingleReports:
    """`apply` stores changes. `confirmed` is called with each end that the store accepted or refused."""

    def __init__(
        self,
        completions: CompletionQueue,
        apply: Apply,
        now: MicrosReader,
        confirmed: Callable[[Sequence[End]], None] = lambda batch: None,
        *,
        raise_to_caller: bool = False,
    ) -> None:
        self._completions = completions
        self._apply = apply
        self._now = now
        self._confirmed = confirmed
        self._raise_to_caller = raise_to_caller  # whoever waits for the verdict on a bad change gets its error

    async def report(self, batch: Sequence[End]) -> None:
        """What is left when the store breaks, or when this is cancelled, goes back to the queue."""
        left = deque(batch)
        try:
            while left:
                try:
                    await self._report_one(left[0])
                except StoreError:
                    left.rotate(-1)  # if this change is the cause, the others go first
                    raise
                except Exception as bad:
                    await self._report_failure(left[0], bad)
                left.popleft()
        finally:
            self._completions.put_back(left)

    async def _report_one(self, end: End) -> None:
        self._completions.record_verdicts([end], await self._apply([end[1]]))
        self._confirmed([end])

    async def _report_failure(self, end: End, bad: Exception) -> None:
        """Report a failure in place of an end that could not be stored. If that cannot be stored either, drop the
        attempt: its lease ends, and upkeep brings the job back."""
        attempt, _ = end
        log.change_not_stored(attempt.record, bad)
        if self._raise_to_caller:
            self._completions.raise_to_caller(attempt, bad)
        try:
            failure = decide(attempt.record, failure_of(attempt, bad, self._now, retryable=True))
            await self._report_one((attempt, failure))
        except StoreError:
            raise
        except Exception as error:
            log.change_not_stored(attempt.record, error)
            self._completions.drop(attempt)
