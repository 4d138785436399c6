"""Finishes attempts: ends the handler's transaction, decides what its end means, and reports that to the completion
queue."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ...core.clock import MicrosReader, boottime
from ...core.job import Loss, State
from ...core.lifecycle import Change, HandedBack, OrdinarySuccess, decide
from ...core.record import Record, faults_of
from ...errors import StoreError, StoreMisconfigured, StoreUnavailable, words_of
from ...flow.cycles import parents_outside
from ...flow.steps import waits_for_an_answer
from ...handler import context_access
from ...observe import log
from ...storage.contract import LOSS_OF, StoreTransaction
from ..completion_queue import CompletionQueue
from ..health.store_trouble import FreeHandBacks, is_long_wait, is_store_trouble
from ..leases.status_board import RunnerBoard
from ..service import retry_pause
from .attempt import STORE_FAILED, Attempt, ChildReport, after_refusal, change_for, failure_of, hand_back, take_raised
from .context_backend import StoreContextBackend

LONG = 0.5  # seconds: a shorter job has not blocked the event loop noticeably
CLOSE_WITHIN = 5.0  # seconds that unfinished ends get when the slots are closed
CHECK_ANSWERS_AFTER = 0.3  # seconds after a job went to wait for an answer, which may have come meanwhile

# a handler that returns although it was told to stop has done its work; the store decides whether its hold is valid
_MAY_BE_HELD = (None, Loss.SHUTDOWN, Loss.ERROR)
# if it raised the store's trouble, or its time ended because of that, the job is not charged
_MAY_BE_FREE = (*_MAY_BE_HELD, Loss.TIMEOUT)
_ALWAYS_IN_TROUBLE = "the store failure_of under this job again and again, so it counts as a failure: {}"


class Completion:
    """Decides and reports the ends of attempts. Ends that need the store first (a transaction, a compensation) become
    tasks."""

    def __init__(
        self,
        now: MicrosReader,
        completions: CompletionQueue,
        backend: StoreContextBackend,
        board: RunnerBoard | None = None,
        store_failed: Callable[[], None] = lambda: None,
        free_hand_backs: FreeHandBacks | None = None,
    ) -> None:
        self._board = board
        self._now = now
        self._backend = backend
        self._completions = completions
        self._report = completions.report
        self._store_failed = store_failed
        self._free_hand_backs = free_hand_backs or FreeHandBacks()
        self._loop = asyncio.get_running_loop()
        self.finishing: dict[asyncio.Task[None], Attempt] = {}
        self.recently_long: deque[Record] = deque(maxlen=5)  # who may have blocked the loop

    def finish(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """The handler ended with a value or an error. Raises nothing: whatever breaks here costs the attempt, and not the
        slot or thread that it ran in."""
        attempt.ended = True
        try:
            if self._board is not None:
                self._board.end(attempt)
            if attempt.started_boot:
                attempt.took = took = boottime() - attempt.started_boot
                if took > LONG:
                    self.recently_long.append(attempt.record)
            context = attempt.context
            if context is not None:
                if context_access.close(context):
                    self._spawn(attempt, self._end_transaction(attempt, value, error))
                    return
            if attempt.store_wait is not None and attempt.lost is Loss.TIMEOUT:
                self._spawn(attempt, self._end_late(attempt, error))
                return
            change = self._judge(attempt, value, error)
            if change.__class__ is OrdinarySuccess:  # nearly every job ends here
                self._report(attempt, change)
            else:
                self._log_and_report(attempt, change)
        except Exception as broke:
            self._fail_instead(attempt, broke)

    def _judge(self, attempt: Attempt, value: object, error: BaseException | None) -> Change | None:
        """The change to report. Trouble of the store is no failure of the job."""
        free = self._free_hand_backs
        if error is None or attempt.lost not in _MAY_BE_FREE or not self._is_store_trouble(error):
            if free.counts:
                free.forget(attempt.record.id)
            return change_for(attempt, value, error, self._now)
        if free.take_one(attempt.record.id):
            log.store_failed_handler(attempt.record, error)
            self._store_failed()
            return hand_back(attempt, STORE_FAILED)
        log.store_trouble_charged(attempt.record)
        failure = StoreUnavailable(_ALWAYS_IN_TROUBLE.format(words_of(error)))
        failure.__cause__ = error
        return decide(attempt.record, failure_of(attempt, failure, self._now, retryable=True), draw=random.random())

    def _is_store_trouble(self, error: BaseException) -> bool:
        if isinstance(error, ChildReport):  # a child process decided it
            return isinstance(error.report, HandedBack)
        return is_store_trouble(error, self._backend.place)

    async def _end_late(self, attempt: Attempt, error: BaseException | None) -> None:
        """The time of an attempt ended while its handler waited for the store."""
        self._log_and_report(attempt, self._judge(attempt, None, await self._blame_for_timeout(attempt, error)))

    async def _blame_for_timeout(self, attempt: Attempt, error: BaseException | None) -> BaseException | None:
        """The error of an attempt whose time is over: one of the store, if the store kept it waiting."""
        assert attempt.context is not None
        if attempt.store_wait is None and context_access.transaction_of(attempt.context) is None:
            return error
        timeout = (attempt.record.timeout or 0) / 1_000_000
        waited = attempt.store_wait is not None and is_long_wait(attempt.store_wait, timeout)
        if waited or not await self._backend.store_works():
            message = f"the attempt's timeout of {timeout:g} s ended while it waited for the store"
            return StoreUnavailable(message).at(self._backend.place)
        return error

    async def _is_lost(self, transaction: StoreTransaction, error: BaseException) -> bool:
        """Whether the store is to blame for an error that the driver raised in a handler: for all of a group."""
        if isinstance(error, BaseExceptionGroup):
            return all([await self._is_lost(transaction, each) for each in error.exceptions])
        return self._is_store_trouble(error) or await transaction.is_lost(error)

    def _fail_instead(self, attempt: Attempt, broke: Exception) -> None:
        """Report a failure, since the end could not be reported. If even this breaks, nobody renews the lease, and it
        ends."""
        log.end_broke(attempt.record, broke)
        instead = None
        try:
            if not attempt.reported:
                instead = decide(attempt.record, failure_of(attempt, broke, self._now, retryable=True))
        except Exception as again:
            log.end_broke(attempt.record, again)
        try:
            self._report(attempt, instead)
        except Exception as again:
            log.end_broke(attempt.record, again)

    def _spawn(self, attempt: Attempt, finishing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._finish_guarded(attempt, finishing))
        self.finishing[task] = attempt
        task.add_done_callback(self._end_finishing)

    async def _finish_guarded(self, attempt: Attempt, finishing: Coroutine[Any, Any, None]) -> None:
        try:
            await finishing
        except Exception as broke:
            self._fail_instead(attempt, broke)
        except BaseException:  # it was cancelled. If the store has its end already, it refuses the hand-back
            self._report(attempt, hand_back(attempt))
            raise

    async def close(self) -> None:
        """Wait for unfinished ends. Without a store they would wait for ever, so cancel them after a while."""
        if self.finishing:
            await asyncio.wait([*self.finishing], timeout=CLOSE_WITHIN)
        for task in [*self.finishing]:
            task.cancel()
        await asyncio.gather(*self.finishing, return_exceptions=True)

    def _end_finishing(self, task: asyncio.Task[None]) -> None:
        self.finishing.pop(task, None)
        self._completions.wake()

    def _log_and_report(self, attempt: Attempt, change: Change | None) -> None:
        if change is not None and change.next_id is not None and parents_outside(change):
            self._spawn(attempt, self._finish_continued(attempt, change))
            return
        if change is None or change.state is State.SUCCEEDED:
            self._report(attempt, change)
            return
        if change.errors is not None:
            _log_failure(attempt, change, change.errors)
        if change.state is State.DEAD:
            self._spawn(attempt, self._finish_dead(attempt, change))
            return
        self._report(attempt, change)
        if change.state is State.SCHEDULED and waits_for_an_answer(change.reason):
            self._loop.call_later(CHECK_ANSWERS_AFTER, self._backend.check_answers, attempt.record.id)

    async def _finish_continued(self, attempt: Attempt, change: Change) -> None:
        """A job continues with jobs that wait for others, unless these wait for the job itself."""
        unfit = await self._backend.find_cycle(change)
        if unfit is None:
            self._report(attempt, change)
        else:
            self._log_and_report(attempt, change_for(attempt, None, unfit, self._now))

    async def _finish_dead(self, attempt: Attempt, change: Change) -> None:
        """A job dies: its compensations are stored with its end. Without the store there is no end to report either, so
        ask until it answers; the lease keeper renews the lease meanwhile. If the store is misconfigured, waiting does not
        help: drop the attempt, and upkeep brings the job back."""
        pause = retry_pause()
        while True:
            try:
                change = await self._backend.with_undo(attempt.context, change)
                break
            except StoreMisconfigured as error:
                log.end_not_stored(attempt.record, error)
                self._report(attempt, None)
                return
            except StoreError as error:
                if pause.is_first:
                    log.store_out_of_reach("looking for what undoes a dead job", error)
            await asyncio.sleep(pause.next())
        self._report(attempt, change)

    async def _end_transaction(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """Commit the handler's rows with its completion, as the last statement, or undo them."""
        assert attempt.context is not None
        inner = context_access.transaction_of(attempt.context)
        assert inner is not None
        if error is not None or attempt.lost not in _MAY_BE_HELD:
            if error is not None and await self._is_lost(inner, error):
                error = StoreUnavailable(f"the transaction was lost: {words_of(error)}").at(self._backend.place)
            late = attempt.lost is Loss.TIMEOUT
            if late and not inner.exclusive:  # a rollback may take until a silent store answers again
                error = await self._blame_for_timeout(attempt, error)
            await _log_errors(inner.rollback())
            if late and inner.exclusive:
                error = await self._blame_for_timeout(attempt, error)
            self._log_and_report(attempt, self._judge(attempt, value, error))
            return
        change = change_for(attempt, value, None, self._now)
        assert change is not None
        if change.errors is not None:  # a result that cannot be stored is an error like any other
            await _log_errors(inner.rollback())
            self._log_and_report(attempt, change)
            return
        attempt.reported = True
        try:
            verdict = await inner.complete(change)
        except Exception as raised:
            await _log_errors(inner.rollback())
            attempt.reported = False
            self._log_and_report(attempt, self._judge(attempt, None, raised))
            return
        if verdict.refusal is not None:
            reason = LOSS_OF.get(verdict.refusal, Loss.ERROR)
            log.hold_lost(attempt.record, reason)
            context_access.lose(attempt.context, reason)
        elif log.logs_successes():
            log.attempt_succeeded(attempt.record, attempt.took)
        self._report(attempt, after_refusal(attempt, change, verdict.refusal))


def _log_failure(attempt: Attempt, change: Change, errors: str) -> None:
    last = faults_of(errors)[-1]
    raised = take_raised(attempt)
    if change.state is State.DEAD:
        log.job_died(attempt.record, change.reason or "", last.kind, last.message, raised)
    else:
        log.attempt_failed(attempt.record, last.kind, last.message, "it is retried", raised)


async def _log_errors(undoing: Any) -> None:
    try:
        await undoing
    except Exception as error:
        log.service_failed("rollback of a handler's transaction", error)
