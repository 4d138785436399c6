"""Where handlers run: fixed slot loops for `async def`, threads for `def`.

A run of a job reads top down: begin → arguments → handler → over. A slot is one task that drives one job after the
other, each in context variables of its own; it yields to the loop every so many jobs, so that handlers which never
wait do not starve the rest of the program.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from ..clock import MicrosReader, boottime
from ..context import Context, Speaker, _current
from ..errors import InvalidCall
from ..job import Loss, Record, State, faults_of
from ..lifecycle import Change, HandedBack, decide
from ..observe import log
from ..storage.contract import LOSS_OF
from .attempt import Attempt, change_of
from .deadlines import Deadlines
from .drive import Driven
from .held import Held
from .threads import Threads

YIELD_EVERY = 64
LONG = 0.5  # seconds: a shorter job has not blocked the loop noticeably

Tell = Callable[[Attempt, Change | None], None]


class Slots:
    """Room for `concurrency` handlers at once."""

    def __init__(
        self, *, app: Any, worker: str, concurrency: int, held: Held, speaker: Speaker, now: MicrosReader, tell: Tell
    ) -> None:
        self._app = app
        self._worker = worker
        self._held = held
        self._speaker = speaker
        self._now = now
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Attempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._on_loop = 0
        self._on_threads = 0  # handed to threads and not over
        self._closing = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()
        self._deadlines = Deadlines(held, self._overdue)
        self._threads = Threads(concurrency, self._run_in_thread, self._over_in_thread)
        self._variables = contextvars.copy_context()
        self._tasks: list[asyncio.Task[None]] = []
        self.concurrency = concurrency
        self.recently_long: deque[Record] = deque(maxlen=5)  # who may have blocked the loop

    # -- what the pump asks --------------------------------------------------------------------------
    @property
    def waiting(self) -> int:
        """Attempts here that have not begun."""
        return len(self._queue) + self._threads.waiting

    @property
    def running(self) -> int:
        """Handlers at work now."""
        return self._on_loop + max(0, self._on_threads - self._threads.waiting)

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._on_loop or self._on_threads or self._settling)

    def feed(self, attempts: list[Attempt]) -> None:
        """Take claimed attempts; they begin as there is room."""
        threaded = [attempt for attempt in attempts if attempt.definition and attempt.definition.run_in == "thread"]
        if threaded:
            self._on_threads += len(threaded)
            self._threads.feed(threaded)
        if len(threaded) < len(attempts):
            self._queue.extend(
                attempt for attempt in attempts if not (attempt.definition and attempt.definition.run_in == "thread")
            )
            self._wake(len(attempts) - len(threaded))

    def take_back(self) -> list[Attempt]:
        """Attempts that have not begun, to be handed back."""
        threaded = self._threads.take_back()
        self._on_threads -= len(threaded)
        taken = [*self._queue, *threaded]
        self._queue.clear()
        return [attempt for attempt in taken if not attempt.ended]

    async def close(self) -> None:
        """End the idle slots. Handlers still at work are cancelled."""
        self._closing.set()
        self._deadlines.close()
        self._threads.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._settling, return_exceptions=True)

    # -- the slots -----------------------------------------------------------------------------------
    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
        lacking = min(len(self._queue), self.concurrency) - len(self._tasks)
        for _ in range(lacking):
            self._tasks.append(self._loop.create_task(self._slot(), name="holdfast slot"))

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        done = 0
        while not self._closing.is_set():
            try:
                if not self._queue:
                    await self._idle_wait()
                    done = 0
                    continue
                await self._run(self._queue.popleft(), task)
                done += 1
                if done % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._closing.is_set():
                    return
                task.uncancel()  # meant for a job that was already over

    async def _idle_wait(self) -> None:
        waiting = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if not waiting.done() or waiting.cancelled():
                self._idle = [other for other in self._idle if other is not waiting]

    async def _run(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        if not self._may_begin(attempt):
            return
        context = self._begin(attempt)
        attempt.slot = task
        self._on_loop += 1
        value: object = None
        error: BaseException | None = None
        try:
            definition = attempt.definition
            if definition is None:
                raise InvalidCall(f"no task named {attempt.record.task!r} is registered in this worker")
            arguments, options = definition.arguments(attempt.record.payload)
            variables = self._variables.copy()
            variables.run(_current.set, context)
            if definition.takes_context:
                coroutine = variables.run(definition.handler, context, *arguments, **options)
            else:
                coroutine = variables.run(definition.handler, *arguments, **options)
            try:
                waits_for = variables.run(coroutine.send, None)
            except StopIteration as end:  # it never waited
                value = end.value
            else:
                value = await Driven(coroutine, variables, waits_for)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as raised:
            error = raised
        finally:
            attempt.slot = None
            self._on_loop -= 1
        if attempt.lost is not None or task.cancelling():
            await self._absorb_cancellation(task)
        self._over(attempt, value, error)

    async def _absorb_cancellation(self, task: asyncio.Task[None]) -> None:
        """A cancellation that reached the slot after its job was over must not hit the next job."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        while task.cancelling() and not self._closing.is_set():
            task.uncancel()

    # -- the threads ---------------------------------------------------------------------------------
    def _run_in_thread(self, attempt: Attempt) -> object:
        if not self._may_begin(attempt):
            return None
        context = self._begin(attempt)
        definition = attempt.definition
        assert definition is not None
        arguments, options = definition.arguments(attempt.record.payload)
        _current.set(context)
        if definition.takes_context:
            return definition.handler(context, *arguments, **options)
        return definition.handler(*arguments, **options)

    def _over_in_thread(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        if attempt.given_up:
            self._threads.gave_back_one()
            return
        self._on_threads -= 1
        if not attempt.ended:
            self._over(attempt, value, error)

    # -- begin and over ------------------------------------------------------------------------------
    def _may_begin(self, attempt: Attempt) -> bool:
        """Not after its hold is gone, nor past the time for which we may trust the lease."""
        if attempt.ended or attempt.lost is not None:
            return False
        attempt.started_boot = boottime()
        if attempt.started_boot < attempt.trusted_until:
            return True
        attempt.lost = Loss.ERROR
        attempt.ended = True
        self._loop.call_soon_threadsafe(self._held.drop, attempt)
        return False

    def _begin(self, attempt: Attempt) -> Context:
        attempt.started_at = self._now()
        context = Context(self._app, attempt.record, self._worker, self._speaker, self._loop)
        attempt.context = context
        if attempt.lost is not None:  # told just before the context was there
            context.lost._set(attempt.lost)
        self._deadlines.watch(attempt)
        return context

    def _over(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """The handler is over: settle its transaction, decide what its end means, tell the store."""
        attempt.ended = True
        if boottime() - attempt.started_boot > LONG:
            self.recently_long.append(attempt.record)
        if attempt.context is not None and attempt.context._transaction is not None:
            task = self._loop.create_task(self._settle(attempt, value, error))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
            return
        self._say(attempt, value, error)

    def _say(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        change = change_of(attempt, value, error, self._now)
        _log_failure(attempt, change)
        self._tell(attempt, change)

    async def _settle(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """Commit the handler's rows with its completion, as the last statement, or undo them."""
        assert attempt.context is not None
        assert attempt.context._transaction is not None
        inner = attempt.context._transaction._inner
        if error is not None or attempt.lost not in (None, Loss.SHUTDOWN):
            await _quietly(inner.rollback())
            self._say(attempt, value, error)
            return
        attempt.said_change = True
        try:
            change = change_of(attempt, value, None, self._now)
            assert change is not None
            verdict = await inner.complete(change)
        except Exception as raised:
            await _quietly(inner.rollback())
            attempt.said_change = False
            self._say(attempt, None, raised)
            return
        if verdict.refusal is not None:
            log.hold_lost(attempt.record, LOSS_OF.get(verdict.refusal, Loss.ERROR))
        self._tell(attempt, None)

    def _overdue(self, attempt: Attempt) -> None:
        if attempt.slot is not None:
            if not attempt.lose(Loss.TIMEOUT):
                attempt.slot.cancel()  # it swallowed the first cancellation
            return
        if attempt.lose(Loss.TIMEOUT):
            attempt.given_up = True
            self._on_threads -= 1
            self._threads.give_up_one()
            log.thread_given_up(attempt.record)
            self._over(attempt, None, None)


def hand_back(attempt: Attempt) -> Change:
    return decide(attempt.record, HandedBack())


def _log_failure(attempt: Attempt, change: Change | None) -> None:
    if change is None or change.errors is None:
        return
    last = faults_of(change.errors)[-1]
    if change.state is State.DEAD:
        log.job_died(attempt.record, change.reason or "", last.kind, last.message)
    else:
        log.attempt_failed(attempt.record, last.kind, last.message, "it is retried")


async def _quietly(undoing: Any) -> None:
    try:
        await undoing
    except Exception as error:
        log.service_failed("rollback of a handler's transaction", error)
