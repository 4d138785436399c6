"""What follows when a handler is over: its transaction is settled, what its end means is decided, the store is told."""

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
from ...observe import log
from ...storage.contract import LOSS_OF, StoreTransaction
from ..health.store_trouble import FreeHandBacks, is_long_wait, is_store_trouble
from ..leases.status_board import RunnerBoard
from ..service import LONGEST_PAUSE, SHORTEST_PAUSE
from .attempt import STORE_FAILED, Attempt, ChildReport, after_refusal, change_for, failed, hand_back, take_raised
from .context_backend import StoreContextBackend

LONG = 0.5  # seconds: a shorter job has not blocked the loop noticeably
LET_GO = 5.0  # seconds that ends under way get when the slots are closed
LOOKED_AGAIN = 0.3  # seconds after a job went to wait for an answer, which may have come meanwhile

# told so, a handler that returns all the same has done its work; whether its hold stands is the store's to say
_MAY_STAND = (None, Loss.SHUTDOWN, Loss.ERROR)
# and if it raised the store's trouble, or its time ended because of that, it is not charged
_MAY_BE_FREE = (*_MAY_STAND, Loss.TIMEOUT)
_ALWAYS_IN_TROUBLE = "the store failed under this job again and again, so it counts as a failure: {}"

Tell = Callable[[Attempt, Change | None], None]


class Completion:
    """Tells the ends of attempts. A transaction's last statement takes a while: `settled` is called when one is through."""

    def __init__(
        self,
        now: MicrosReader,
        tell: Tell,
        settled: Callable[[], None],
        speaker: StoreContextBackend,
        board: RunnerBoard | None = None,
        store_failed: Callable[[], None] = lambda: None,
        free_hand_backs: FreeHandBacks | None = None,
    ) -> None:
        self._board = board
        self._now = now
        self._speaker = speaker
        self._tell = tell
        self._settled = settled
        self._store_failed = store_failed
        self._free_hand_backs = free_hand_backs or FreeHandBacks()
        self._loop = asyncio.get_running_loop()
        self.settling: dict[asyncio.Task[None], Attempt] = {}
        self.recently_long: deque[Record] = deque(maxlen=5)  # who may have blocked the loop

    def finish(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """The handler ended with a value or an error. Nothing is raised: whatever breaks here costs the attempt, and not
        the slot or the thread that it ran in."""
        attempt.ended = True
        try:
            if self._board is not None:
                self._board.over(attempt)
            if attempt.started_boot:
                attempt.took = took = boottime() - attempt.started_boot
                if took > LONG:
                    self.recently_long.append(attempt.record)
            context = attempt.context
            if context is not None:
                context._over = True
                if context._transaction is not None:
                    self._begin(attempt, self._settle(attempt, value, error))
                    return
            if attempt.store_wait is not None and attempt.lost is Loss.TIMEOUT:
                self._begin(attempt, self._end_late(attempt, error))
                return
            change = self._judge(attempt, value, error)
            if change.__class__ is OrdinarySuccess:  # the way of nearly every job
                self._tell(attempt, change)
            else:
                self._say(attempt, change)
        except Exception as broke:
            self._fail_instead(attempt, broke)

    def _judge(self, attempt: Attempt, value: object, error: BaseException | None) -> Change | None:
        """What to report. The store's own trouble is no failure of the job."""
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
        told = StoreUnavailable(_ALWAYS_IN_TROUBLE.format(words_of(error)))
        told.__cause__ = error
        return decide(attempt.record, failed(attempt, told, self._now, retryable=True), draw=random.random())

    def _is_store_trouble(self, error: BaseException) -> bool:
        if isinstance(error, ChildReport):  # a child process has judged it
            return isinstance(error.said, HandedBack)
        return is_store_trouble(error, self._speaker.place)

    async def _end_late(self, attempt: Attempt, error: BaseException | None) -> None:
        """The time of an attempt ended while its handler waited for the store."""
        self._say(attempt, self._judge(attempt, None, await self._blame_for_timeout(attempt, error)))

    async def _blame_for_timeout(self, attempt: Attempt, error: BaseException | None) -> BaseException | None:
        """The error to judge an attempt by whose time is over: the store's, if the store has kept it waiting."""
        assert attempt.context is not None
        if attempt.store_wait is None and attempt.context._transaction is None:
            return error
        timeout = (attempt.record.timeout or 0) / 1_000_000
        waited = attempt.store_wait is not None and is_long_wait(attempt.store_wait, timeout)
        if waited or not await self._speaker.store_works():
            told = f"the attempt's timeout of {timeout:g} s ended while it waited for the store"
            return StoreUnavailable(told).at(self._speaker.place)
        return error

    async def _is_lost(self, transaction: StoreTransaction, error: BaseException) -> bool:
        """Whether the store is to blame for an error that the driver raised in a handler: for all of a group."""
        if isinstance(error, BaseExceptionGroup):
            return all([await self._is_lost(transaction, each) for each in error.exceptions])
        return self._is_store_trouble(error) or await transaction.is_lost(error)

    def _fail_instead(self, attempt: Attempt, broke: Exception) -> None:
        """Its end could not be told as it was: tell that. If even this breaks, nobody renews the lease, and it ends."""
        log.end_broke(attempt.record, broke)
        instead = None
        try:
            if not attempt.said_change:
                instead = decide(attempt.record, failed(attempt, broke, self._now, retryable=True))
        except Exception as again:
            log.end_broke(attempt.record, again)
        try:
            self._tell(attempt, instead)
        except Exception as again:
            log.end_broke(attempt.record, again)

    def _begin(self, attempt: Attempt, settling: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._guarded(attempt, settling))
        self.settling[task] = attempt
        task.add_done_callback(self._is_settled)

    async def _guarded(self, attempt: Attempt, settling: Coroutine[Any, Any, None]) -> None:
        try:
            await settling
        except Exception as broke:
            self._fail_instead(attempt, broke)
        except BaseException:  # it was cancelled. If its end is on record already, the store refuses the hand-back
            self._tell(attempt, hand_back(attempt))
            raise

    async def close(self) -> None:
        """Wait for the ends under way. Without a store they would go on for ever, so they are cancelled after a while."""
        if self.settling:
            await asyncio.wait([*self.settling], timeout=LET_GO)
        for task in [*self.settling]:
            task.cancel()
        await asyncio.gather(*self.settling, return_exceptions=True)

    def _is_settled(self, task: asyncio.Task[None]) -> None:
        self.settling.pop(task, None)
        self._settled()

    def _say(self, attempt: Attempt, change: Change | None) -> None:
        if change is not None and change.next_id is not None and parents_outside(change):
            self._begin(attempt, self._finish_continued(attempt, change))
            return
        if change is None or change.state is State.SUCCEEDED:
            self._tell(attempt, change)
            return
        if change.errors is not None:
            _log_failure(attempt, change, change.errors)
        if change.state is State.DEAD:
            self._begin(attempt, self._finish_dead(attempt, change))
            return
        self._tell(attempt, change)
        if change.state is State.SCHEDULED and waits_for_an_answer(change.reason):
            self._loop.call_later(LOOKED_AGAIN, self._speaker.look_for_answers, attempt.record.id)

    async def _finish_continued(self, attempt: Attempt, change: Change) -> None:
        """A job goes on with jobs that wait for others: unless these wait for it."""
        unfit = await self._speaker.circle(change)
        if unfit is None:
            self._tell(attempt, change)
        else:
            self._say(attempt, change_for(attempt, None, unfit, self._now))

    async def _finish_dead(self, attempt: Attempt, change: Change) -> None:
        """A job dies: what undoes it is put on record with its end. Without the store there is no end to report either, so
        it is asked until it answers. The keeper renews the lease meanwhile. What no waiting mends ends that: the job is left
        to its lease, and upkeep brings it back."""
        pause = SHORTEST_PAUSE
        while True:
            try:
                change = await self._speaker.with_undo(attempt.context, change)
                break
            except StoreMisconfigured as error:
                log.end_not_stored(attempt.record, error)
                self._tell(attempt, None)
                return
            except StoreError as error:
                if pause == SHORTEST_PAUSE:
                    log.store_out_of_reach("looking for what undoes a dead job", error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
        self._tell(attempt, change)

    async def _settle(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """Commit the handler's rows with its completion, as the last statement, or undo them."""
        assert attempt.context is not None
        assert attempt.context._transaction is not None
        inner = attempt.context._transaction._inner
        if error is not None or attempt.lost not in _MAY_STAND:
            if error is not None and await self._is_lost(inner, error):
                error = StoreUnavailable(f"the transaction was lost: {words_of(error)}").at(self._speaker.place)
            late = attempt.lost is Loss.TIMEOUT
            if late and not inner.exclusive:  # a rollback may take until a silent store answers again
                error = await self._blame_for_timeout(attempt, error)
            await _quietly(inner.rollback())
            if late and inner.exclusive:
                error = await self._blame_for_timeout(attempt, error)
            self._say(attempt, self._judge(attempt, value, error))
            return
        change = change_for(attempt, value, None, self._now)
        assert change is not None
        if change.errors is not None:  # a result that cannot be stored is an error like any other
            await _quietly(inner.rollback())
            self._say(attempt, change)
            return
        attempt.said_change = True
        try:
            verdict = await inner.complete(change)
        except Exception as raised:
            await _quietly(inner.rollback())
            attempt.said_change = False
            self._say(attempt, self._judge(attempt, None, raised))
            return
        if verdict.refusal is not None:
            reason = LOSS_OF.get(verdict.refusal, Loss.ERROR)
            log.hold_lost(attempt.record, reason)
            attempt.context.lost._set(reason)
        elif log.logs_successes():
            log.attempt_succeeded(attempt.record, attempt.took)
        self._tell(attempt, after_refusal(attempt, change, verdict.refusal))


def _log_failure(attempt: Attempt, change: Change, errors: str) -> None:
    last = faults_of(errors)[-1]
    raised = take_raised(attempt)
    if change.state is State.DEAD:
        log.job_died(attempt.record, change.reason or "", last.kind, last.message, raised)
    else:
        log.attempt_failed(attempt.record, last.kind, last.message, "it is retried", raised)


async def _quietly(undoing: Any) -> None:
    try:
        await undoing
    except Exception as error:
        log.service_failed("rollback of a handler's transaction", error)
