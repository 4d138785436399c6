"""Where handlers run: fixed slot loops for `async def`, threads for `def`.

A run of a job reads top down: begin → handler (`calling.py`) → over (`ends.py`). A slot is one task that drives one job
after the other, each in context variables of its own; it yields to the loop every so many jobs, so that handlers which
never wait do not starve the rest of the program.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...core.clock import MicrosReader, boottime
from ...core.job import Loss
from ...errors import InvalidCall
from ...handler.context import Context
from ...handler.item import BatchContext, Item
from ...observe import log
from ...tasks.providers import Opened
from ..health.store_trouble import FreeHandBacks
from ..leases.held_jobs import HeldJobs
from ..leases.status_board import ELSEWHERE
from .attempt import Attempt
from .batches import Batch, BatchCollector
from .child_processes import Processes
from .completion import Completion, Tell
from .context_backend import StoreContextBackend
from .coroutine_driver import ContextCoroutine
from .deadlines import AGAIN, Deadlines
from .invocation import Invoker, first_step, first_step_of
from .item_outcome import Confirm, ItemOutcome
from .threads import Threads

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

YIELD_EVERY = 64
LEFT = 0.05  # seconds before another takes the place of a slot that was cancelled


class Slots:
    """Room for `concurrency` handlers at once."""

    def __init__(
        self,
        *,
        app: Any,
        worker: str,
        concurrency: int,
        held: HeldJobs,
        speaker: StoreContextBackend,
        opened: Opened,
        now: MicrosReader,
        tell: Tell,
        dry: Callable[[], None],
        confirm: Confirm,
        store_failed: Callable[[], None],
        free_hand_backs: FreeHandBacks,
        batch_sizes: Mapping[TaskDefinition, int],
    ) -> None:
        self._app = app
        self._worker = worker
        self._held = held
        self._board = held.board
        self._speaker = speaker
        self._now = now
        self._dry = dry
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Attempt | Batch] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._on_loop = 0
        self._in_threads: set[Attempt] = set()  # handed to threads and not over
        self._closed = False
        self._ends = Completion(now, tell, self._dry_when_idle, speaker, held.board, store_failed, free_hand_backs)
        self._over = self._ends.finish
        self._deadlines = Deadlines(held, self._overdue)
        self._calling = Invoker(opened, concurrency, self._gave_up_thread)
        self._processes = Processes(app, speaker, now, self._begun_in_child)
        self._threads: Threads[Attempt] = Threads(concurrency, self._run_in_thread, self._over_in_thread)
        self._variables = contextvars.copy_context()
        self._tasks: list[asyncio.Task[None]] = []
        self._guests: set[asyncio.Task[None]] = set()  # others that run jobs, each in the place of an idle slot
        self.concurrency = concurrency
        self.forming = BatchCollector(batch_sizes, self._form)
        self._confirm = confirm
        self._has_batches = bool(batch_sizes)
        self.recently_long = self._ends.recently_long

    @classmethod
    def drivers(cls) -> frozenset[CodeType]:
        """The code that drives handlers in the loop: on the stack of whatever they do."""
        return frozenset(each.__code__ for each in (cls._start_attempt, cls._await_handler, cls._together))

    def prepare(self, definitions: Iterable[TaskDefinition]) -> None:
        """Before the first job: handlers may need processes of their own."""
        self._processes.prepare(definitions)

    # -- what the pump asks --------------------------------------------------------------------------
    @property
    def waiting(self) -> int:
        """Attempts here that have not begun."""
        return len(self._queue) + self._threads.waiting

    @property
    def running(self) -> int:
        """Handlers at work now."""
        return self._on_loop + max(0, len(self._in_threads) - self._threads.waiting)

    @property
    def on_loop(self) -> int:
        """Handlers on the event loop now."""
        return self._on_loop

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._on_loop or self._in_threads or self._ends.settling or self.forming.gathering)

    def at_hand(self) -> Iterator[Attempt]:
        """Every attempt that waits or runs here, or whose end is being made ready for the store."""
        for run in self._queue:
            yield from run.attempts if isinstance(run, Batch) else (run,)
        yield from self.forming.at_hand()
        yield from self._in_threads
        yield from self._held.where(_runs_on_loop)
        yield from self._ends.settling.values()

    def feed(self, attempts: list[Attempt], *, served: bool = False) -> None:
        """Take claimed attempts; they begin as there is room. `served`: whoever brings them calls `serve` next."""
        if self._has_batches:
            attempts = self.forming.sorted_out(attempts)
        in_threads = {each for each in {attempt.definition for attempt in attempts} if each and each.in_thread}
        if in_threads:
            threaded = [attempt for attempt in attempts if attempt.definition in in_threads]
            attempts = [attempt for attempt in attempts if attempt.definition not in in_threads]
            self._in_threads.update(threaded)
            self._threads.feed(threaded)
        if attempts:
            self._queue.extend(attempts)
            if not served:
                self._wake(1)

    def take_back(self) -> list[Attempt]:
        """Attempts that have not begun, to be handed back."""
        threaded = self._threads.take_back()
        self._in_threads.difference_update(threaded)
        queued = [run.attempts if isinstance(run, Batch) else [run] for run in self._queue]
        taken = [*(attempt for attempts in queued for attempt in attempts), *threaded, *self.forming.take_back()]
        self._queue.clear()
        return [attempt for attempt in taken if not attempt.ended]

    async def close(self) -> None:
        """End the idle slots. Handlers still at work are cancelled."""
        self._closed = True
        self._deadlines.close()
        self.forming.close()
        self._threads.close()
        self._calling.close()
        at_work = [*self._tasks, *self._guests]
        for task in at_work:
            task.cancel()
        await self._processes.close()
        await asyncio.gather(*at_work, return_exceptions=True)
        await self._ends.close()

    # -- the slots -----------------------------------------------------------------------------------
    def _wake(self, count: int) -> None:
        """Let more slots look at the queue. One goes through any number of handlers that never wait; a slot whose
        handler does wait calls two others."""
        for _ in range(0 if self._closed else min(count, len(self._queue))):
            self._idle = [waiting for waiting in self._idle if not waiting.done()]
            if self._idle:
                self._idle.pop().set_result(None)
            elif len(self._tasks) < self.concurrency:
                self._tasks.append(self._loop.create_task(self._slot(), name="perdure slot"))

    async def run_in_caller(self, guest: asyncio.Task[None]) -> None:
        """Run what waits in the task that brought it, which takes the place of an idle slot for that while: to wake one up
        takes another turn of the loop. Without an idle one the slots do it."""
        self._idle = [waiting for waiting in self._idle if not waiting.done()]
        if not self._queue or not self._idle or self._closed:
            self._wake(1)
            return
        place = self._idle.pop()
        self._guests.add(guest)
        try:
            while self._queue and not self._closed:
                await self._one_after_the_other(guest)
        finally:
            self._guests.discard(guest)
            self._idle.append(place)

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self._closed:
                await self._one_after_the_other(task)
                await self._idle_wait()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.remove(task)

    async def _one_after_the_other(self, task: asyncio.Task[None]) -> None:
        """Run jobs until none waits.

        A cancellation that comes this far was meant for no job: the slots are closed, or the loop comes to its end and waits
        for this task; or a handler has cancelled itself. In a moment, should there still be one, others go on."""
        done, queue, begun = 0, self._queue, self._start_attempt
        while queue and not self._closed:
            try:
                run = queue.popleft()
                try:
                    waits = self._begun_together(run, task) if isinstance(run, Batch) else begun(run, task)
                    if waits is not None:
                        await waits
                except Exception as broke:  # no handler's error comes this far; a fault of ours must not cost the slot
                    self._broke(run, broke)
                done += 1
                if done % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self._loop.call_later(LEFT, self._wake, 1)
                raise
        if not self.busy:
            self._dry()

    def end_unbegun(self, attempt: Attempt, end: BaseException) -> None:
        """Report an attempt whose handler is not called."""
        self._over(attempt, None, end)

    def _broke(self, run: Attempt | Batch, error: Exception) -> None:
        log.service_failed("a slot", error)
        for attempt in run.attempts if isinstance(run, Batch) else [run]:
            if not attempt.ended:
                self._over(attempt, None, error)
        if isinstance(run, Batch):
            self.forming.over(run)

    async def _idle_wait(self) -> None:
        waiting = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if not waiting.done() or waiting.cancelled():
                self._idle = [other for other in self._idle if other is not waiting]

    def _start_attempt(self, attempt: Attempt, task: asyncio.Task[None]) -> Coroutine[Any, Any, None] | None:
        """Run the handler until it is over (None) or waits for something; then the rest of the way."""
        context = self._begin(attempt)
        if context is None:
            return None
        self._on_loop += 1
        variables = self._variables.copy()
        value: object = None
        error: BaseException | None = None
        try:
            definition = attempt.definition
            if definition is None:
                raise InvalidCall(f"no task named {attempt.record.task!r} is registered in this worker")
            if definition.plain_on_loop:
                coroutine, value = variables.run(first_step, definition, context, attempt.record.payload)
            elif definition.run_in == "process":
                coroutine, value = variables.run(first_step_of, self._processes.run(attempt, context))
            else:
                coroutine, value = variables.run(self._calling.first_step, attempt, context)
            if coroutine is not None:
                return self._await_handler(attempt, task, ContextCoroutine(coroutine, variables, value))
        except KeyboardInterrupt:  # a Ctrl-C is the program's
            self._on_loop -= 1
            raise
        except BaseException as raised:
            error = raised
        self._on_loop -= 1
        if attempt.lost is not None or task.cancelling():
            return self._absorbed(attempt, task, value, error)
        self._over(attempt, value, error)
        return None

    async def _await_handler(self, attempt: Attempt, task: asyncio.Task[None], handler: ContextCoroutine) -> None:
        attempt.slot = task  # before it waits for something nobody could stop it
        self._deadlines.watch(attempt)
        if self._queue:
            self._wake(2)
        value: object = None
        error: BaseException | None = None
        try:
            value = await handler
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt) or handler.closed:
                raise
            error = raised
        finally:
            attempt.slot = None
            self._on_loop -= 1
        if attempt.lost is not None or task.cancelling():
            await self._absorbed(attempt, task, value, error)
        else:
            self._over(attempt, value, error)

    async def _absorbed(
        self, attempt: Attempt, task: asyncio.Task[None], value: object, error: BaseException | None
    ) -> None:
        if attempt.lost is None:
            self._over(attempt, value, error)
            raise asyncio.CancelledError  # it was not meant for the job
        await self._absorb_cancellation(task)
        self._over(attempt, value, error)

    async def _absorb_cancellation(self, task: asyncio.Task[None]) -> None:
        """A cancellation that reached the slot after its job was over must not hit the next job."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        while task.cancelling() and not self._closed:
            task.uncancel()

    # -- the batches ---------------------------------------------------------------------------------
    def _form(self, batch: Batch) -> None:
        self._queue.append(batch)
        self._wake(1)

    def _begun_together(self, batch: Batch, task: asyncio.Task[None]) -> Coroutine[Any, Any, None] | None:
        """Begin what may begin of a batch; the call itself is the rest of the way."""
        batch.attempts = [attempt for attempt in batch.attempts if self._may_begin(attempt)]
        items = [item for attempt in batch.attempts if (item := self._begin_item(attempt, batch)) is not None]
        batch.attempts = [attempt for attempt in batch.attempts if not attempt.ended]
        if not items:
            self.forming.over(batch)
            return None
        return self._together(batch, batch.begin(items), task)

    def _begin_item(self, attempt: Attempt, batch: Batch) -> Item[Any] | None:
        """An item with its arguments. Those that do not fit are the failure of this item alone."""
        attempt.started_at = attempt.record.started_at = self._now()
        if self._board is not None:
            self._board.begun(attempt)
        self._deadlines.watch(attempt)
        assert attempt.definition is not None
        try:
            (args,), _ = attempt.definition.arguments(attempt.record.payload)
        except KeyboardInterrupt:
            raise
        except BaseException as unfit:  # types of the user's making may raise anything
            self._over(attempt, None, unfit)
            return None
        reporter = ItemOutcome(attempt, self._over, self._confirm)
        item = Item(self._app, attempt.record, self._worker, self._speaker, self._loop, reporter, args)
        attempt.context = item
        attempt.batch = batch
        return item

    async def _together(self, batch: Batch, context: BatchContext, task: asyncio.Task[None]) -> None:
        if self._queue:
            self._wake(2)
        value: object = None
        error: BaseException | None = None
        batch.slot = task
        self._on_loop += 1
        self._stop_in_time(batch, batch.longest)
        variables = self._variables.copy()
        handler: ContextCoroutine | None = None
        try:
            coroutine, value = variables.run(self._calling.first_step_of_batch, batch, context)
            if coroutine is not None:
                handler = ContextCoroutine(coroutine, variables, value)
                value = await handler
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt) or (handler is not None and handler.closed):
                raise
            value, error = None, raised
        finally:
            batch.slot = None
            self._on_loop -= 1
            if batch.timer is not None:
                batch.timer.cancel()
        if batch.lost is not None:
            await self._absorb_cancellation(task)
        for each in batch.ends(value, error):
            self._over(*each)
        self.forming.over(batch)
        if task.cancelling():
            raise asyncio.CancelledError  # it was not meant for the batch

    def _stop_in_time(self, batch: Batch, seconds: float | None) -> None:
        """Items that have their outcome have no timeout any more, but the call has: that of the longest."""
        if seconds is not None:
            batch.timer = self._loop.call_later(seconds, self._stop_again, batch)

    def _stop_again(self, batch: Batch) -> None:
        batch.stop()
        self._stop_in_time(batch, AGAIN)

    # -- the threads ---------------------------------------------------------------------------------
    def _run_in_thread(self, attempt: Attempt) -> object:
        context = self._begin(attempt)
        if context is None:
            return None
        self._deadlines.watch(attempt)
        return self._calling.in_thread(attempt, context)

    def _over_in_thread(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        if attempt.given_up:
            self._threads.gave_back_one()
            return
        self._in_threads.discard(attempt)
        if not attempt.ended:
            self._over(attempt, value, error)
        self._dry_when_idle()

    def _dry_when_idle(self) -> None:
        if not self.busy:
            self._dry()

    # -- begin and over ------------------------------------------------------------------------------
    def _may_begin(self, attempt: Attempt) -> bool:
        """Not after its hold is gone, nor past the time for which we may trust the lease."""
        if attempt.ended or attempt.lost is not None:
            return False
        attempt.started_boot = now = boottime()
        if now < attempt.trusted_until or self._held.trusts(attempt, now):
            return True
        attempt.lost, attempt.ended = Loss.ERROR, True
        self._loop.call_soon_threadsafe(self._held.mark_lost, attempt, Loss.ERROR)
        return False

    def _begin(self, attempt: Attempt) -> Context | None:
        """The attempt begins now, if it may."""
        if not self._may_begin(attempt):
            return None
        record = attempt.record
        attempt.started_at = record.started_at = self._now()
        if attempt.definition is not None and attempt.definition.run_in == "process":
            attempt.untimed = True
        elif self._board is not None:
            self._board.begun(attempt)
        context = attempt.context = Context(self._app, record, self._worker, self._speaker, self._loop)
        if attempt.parents:
            context._parents = attempt.parents
        if attempt.lost is not None:  # told just before the context was there
            context.lost._set(attempt.lost)
        return context

    def _begun_in_child(self, attempt: Attempt) -> None:
        """A child process takes it up: its time begins now."""
        attempt.started_at = attempt.record.started_at = self._now()
        attempt.started_boot, attempt.untimed = boottime(), False
        if self._board is not None:
            self._board.begun(attempt, ELSEWHERE)
        self._deadlines.watch(attempt)

    def _gave_up_thread(self) -> None:
        if self._board is not None:
            self._board.gave_up_thread()

    def _overdue(self, attempt: Attempt) -> None:
        if attempt.batch is not None:
            if attempt.lose(Loss.TIMEOUT):
                self._over(attempt, None, None)
            return
        if attempt.slot is not None:
            if not attempt.lose(Loss.TIMEOUT):
                attempt.slot.cancel()  # it swallowed the first cancellation
            return
        if attempt.lose(Loss.TIMEOUT):
            attempt.given_up = True
            self._in_threads.discard(attempt)
            self._threads.give_up_one()
            self._gave_up_thread()
            log.thread_given_up(attempt.record)
            self._over(attempt, None, None)


def _runs_on_loop(attempt: Attempt) -> bool:
    slot = attempt.slot if attempt.batch is None else attempt.batch.slot
    return slot is not None and not slot.done()
