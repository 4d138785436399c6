"""Runs handlers: `async def` in slots on the event loop, `def` in threads, batches in one call.

A run reads top down: `Starter.start`, then the handler (`invocation.py`), then `Completion.finish`. Every job has its own
context variables.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...core.clock import MicrosReader
from ...core.job import Loss
from ...errors import InvalidCall
from ...handler.item import BatchContext, Item
from ...observe import log
from ...tasks.providers import Opened
from ..completion_queue import CompletionQueue
from ..health.store_trouble import StoreRecovery
from ..host import HostApp
from ..leases.held_jobs import HeldJobs
from .attempt import Attempt, hand_back
from .batches import Batch, BatchCollector
from .child_processes import Processes
from .completion import Completion
from .context_backend import StoreContextBackend
from .coroutine_driver import ContextCoroutine
from .deadlines import Deadlines
from .invocation import Invoker, first_step, first_step_of
from .slot_tasks import SlotTasks
from .start import Starter
from .threads import Threads

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition


class Slots:
    """Runs at most `concurrency` handlers at once."""

    def __init__(
        self,
        *,
        app: HostApp,
        worker: str,
        concurrency: int,
        batch_sizes: Mapping[TaskDefinition, int],
        held: HeldJobs,
        completions: CompletionQueue,
        recovery: StoreRecovery,
        backend: StoreContextBackend,
        opened: Opened,
        now: MicrosReader,
    ) -> None:
        self._held = held
        self._completions = completions
        self._recovery = recovery
        self._loop = asyncio.get_running_loop()
        self._on_loop = 0
        self._in_threads: set[Attempt] = set()  # handed to threads and not over
        self._accepting = True
        self._completion = Completion(
            now,
            completions,
            backend,
            board=held.board,
            store_failed=self._note_store_trouble,
            free_hand_backs=recovery.free_hand_backs,
        )
        self._finish = self._completion.finish
        self._starter = Starter(
            app=app,
            worker=worker,
            held=held,
            completions=completions,
            completion=self._completion,
            backend=backend,
            now=now,
        )
        self._deadlines = Deadlines(held, self._end_overdue)
        self._invoker = Invoker(opened, concurrency, self._note_given_up_thread)
        self._processes = Processes(app, backend, now, self._start_in_child)
        self._threads: Threads[Attempt] = Threads(concurrency, self._run_in_thread, self._finish_in_thread)
        self._variables = contextvars.copy_context()
        self._on_event_loop: SlotTasks[Attempt | Batch] = SlotTasks(
            concurrency, self._run, self._fail_run, self._wake_claim_loop_when_idle
        )
        self._has_batches = bool(batch_sizes)
        self.concurrency = concurrency
        self.batches = BatchCollector(batch_sizes, self._add_batch)
        self.recently_long = self._completion.recently_long
        self.last_feed = (0.0, 0)  # when the slots last got jobs, by the monotonic clock, and how many

    @classmethod
    def driver_code(cls) -> frozenset[CodeType]:
        """The code that drives handlers on the event loop: it is on the stack of whatever they do."""
        return frozenset(each.__code__ for each in (cls._run, cls._await_handler, cls._run_batch))

    def prepare(self, definitions: Iterable[TaskDefinition]) -> None:
        """Before the first job: handlers may need processes of their own."""
        self._processes.prepare(definitions)

    # -- what the claim loop asks --------------------------------------------------------------------
    @property
    def accepting(self) -> bool:
        """Whether the worker still starts jobs. If not, nothing should be claimed either."""
        return self._accepting

    @property
    def waiting(self) -> int:
        """Attempts here that have not started."""
        return self._on_event_loop.waiting + self._threads.waiting

    @property
    def running(self) -> int:
        """Handlers that run now."""
        return self._on_loop + max(0, len(self._in_threads) - self._threads.waiting)

    @property
    def on_loop(self) -> int:
        """Handlers on the event loop now."""
        return self._on_loop

    @property
    def busy(self) -> bool:
        return bool(
            self._on_event_loop.waiting
            or self._on_loop
            or self._in_threads
            or self._completion.finishing
            or self.batches.collecting
        )

    def attempts(self) -> Iterator[Attempt]:
        """Every attempt that waits or runs here, or whose end is being prepared for the store."""
        for run in self._on_event_loop.pieces():
            yield from run.attempts if isinstance(run, Batch) else (run,)
        yield from self.batches.attempts()
        yield from self._in_threads
        yield from self._held.where(_runs_on_loop)
        yield from self._completion.finishing.values()

    def feed(self, attempts: list[Attempt]) -> None:
        """Run claimed attempts as slots become free. A worker that is about to stop hands them back."""
        if not self._accepting:
            self._hand_back(attempts)
            return
        if not attempts:
            return
        self.last_feed = (monotonic(), len(attempts))
        if self._has_batches:
            attempts = self.batches.add(attempts)
        in_threads = {each for each in {attempt.definition for attempt in attempts} if each and each.in_thread}
        if in_threads:
            threaded = [attempt for attempt in attempts if attempt.definition in in_threads]
            attempts = [attempt for attempt in attempts if attempt.definition not in in_threads]
            self._in_threads.update(threaded)
            self._threads.feed(threaded)
        if attempts:
            self._on_event_loop.feed(attempts)

    def stop_accepting(self) -> None:
        """Start no job from now on: hand back what waits, and whatever is fed later."""
        self._accepting = False
        self._hand_back_waiting()

    def end_unstarted(self, attempt: Attempt, end: BaseException) -> None:
        """Report the end of an attempt whose handler is not called."""
        self._finish(attempt, None, end)

    def _hand_back_waiting(self) -> None:
        threaded = self._threads.take_back()
        self._in_threads.difference_update(threaded)
        runs = self._on_event_loop.take_back()
        queued = [run.attempts if isinstance(run, Batch) else [run] for run in runs]
        waiting = [*(attempt for attempts in queued for attempt in attempts), *threaded, *self.batches.take_back()]
        self._hand_back([attempt for attempt in waiting if not attempt.ended])

    def _hand_back(self, attempts: Iterable[Attempt]) -> None:
        """Return jobs that have not started to the store, free of charge."""
        for attempt in attempts:
            self._completions.report(attempt, hand_back(attempt))

    def _note_store_trouble(self) -> None:
        """The store failed a handler. What has not started would meet the same trouble, so it goes back."""
        if self._recovery.begin():
            self._hand_back_waiting()

    async def close(self) -> None:
        """End the idle slots. Handlers that still run are cancelled."""
        self._deadlines.close()
        self.batches.close()
        self._threads.close()
        self._invoker.close()
        await self._on_event_loop.close(self._processes.close())
        await self._completion.close()

    # -- on the event loop ---------------------------------------------------------------------------
    def _fail_run(self, run: Attempt | Batch, error: Exception) -> None:
        log.service_failed("a slot", error)
        for attempt in run.attempts if isinstance(run, Batch) else [run]:
            if not attempt.ended:
                self._finish(attempt, None, error)
        if isinstance(run, Batch):
            self.batches.end(run)

    def _wake_claim_loop_when_idle(self) -> None:
        """With nothing left to run, ends are sent at once."""
        if not self.busy:
            self._completions.wake()

    def _run(self, run: Attempt | Batch, task: asyncio.Task[None]) -> Coroutine[Any, Any, None] | None:
        """Run the handler until it ends (returns None) or waits for something (returns the coroutine that runs the rest)."""
        if isinstance(run, Batch):
            return self._start_batch(run, task)
        attempt = run
        context = self._starter.start(attempt)
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
                coroutine, value = variables.run(self._invoker.first_step, attempt, context)
            if coroutine is not None:
                return self._await_handler(attempt, task, ContextCoroutine(coroutine, variables, value))
        except KeyboardInterrupt:  # a Ctrl-C is the program's
            self._on_loop -= 1
            raise
        except BaseException as raised:
            error = raised
        self._on_loop -= 1
        if attempt.lost is not None or task.cancelling():
            return self._absorb_and_finish(attempt, task, value, error)
        self._finish(attempt, value, error)
        return None

    async def _await_handler(self, attempt: Attempt, task: asyncio.Task[None], handler: ContextCoroutine) -> None:
        attempt.slot = task  # before it waits for something nobody could stop it
        self._deadlines.watch(attempt)
        self._on_event_loop.wake_others()
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
            await self._absorb_and_finish(attempt, task, value, error)
        else:
            self._finish(attempt, value, error)

    async def _absorb_and_finish(
        self, attempt: Attempt, task: asyncio.Task[None], value: object, error: BaseException | None
    ) -> None:
        if attempt.lost is None:
            self._finish(attempt, value, error)
            raise asyncio.CancelledError  # it was not meant for the job
        await self._absorb_cancellation(task)
        self._finish(attempt, value, error)

    async def _absorb_cancellation(self, task: asyncio.Task[None]) -> None:
        """A cancellation that reached the slot after its job was over must not hit the next job."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        while task.cancelling() and not self._on_event_loop.closed:
            task.uncancel()

    # -- the batches ---------------------------------------------------------------------------------
    def _add_batch(self, batch: Batch) -> None:
        self._on_event_loop.feed([batch])

    def _start_batch(self, batch: Batch, task: asyncio.Task[None]) -> Coroutine[Any, Any, None] | None:
        """Start the items of a batch that may start. Returns the coroutine that calls the handler."""
        batch.attempts = [attempt for attempt in batch.attempts if self._starter.may_start(attempt)]
        items = [item for attempt in batch.attempts if (item := self._start_item(attempt, batch)) is not None]
        batch.attempts = [attempt for attempt in batch.attempts if not attempt.ended]
        if not items:
            self.batches.end(batch)
            return None
        return self._run_batch(batch, batch.begin(items), task)

    def _start_item(self, attempt: Attempt, batch: Batch) -> Item[Any] | None:
        self._deadlines.watch(attempt)
        item = self._starter.start_item(attempt, _argument_of_item)
        if item is not None:
            attempt.batch = batch
        return item

    async def _run_batch(self, batch: Batch, context: BatchContext, task: asyncio.Task[None]) -> None:
        self._on_event_loop.wake_others()
        value: object = None
        error: BaseException | None = None
        batch.slot = task
        self._on_loop += 1
        batch.stop_in_time(self._loop)
        variables = self._variables.copy()
        handler: ContextCoroutine | None = None
        try:
            coroutine, value = variables.run(self._invoker.first_step_of_batch, batch, context)
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
            batch.cancel_timer()
        if batch.lost is not None:
            await self._absorb_cancellation(task)
        for each in batch.ends(value, error):
            self._finish(*each)
        self.batches.end(batch)
        if task.cancelling():
            raise asyncio.CancelledError  # it was not meant for the batch

    # -- the threads ---------------------------------------------------------------------------------
    def _run_in_thread(self, attempt: Attempt) -> object:
        context = self._starter.start(attempt)
        if context is None:
            return None
        self._deadlines.watch(attempt)
        return self._invoker.in_thread(attempt, context)

    def _finish_in_thread(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        if attempt.given_up:
            self._threads.take_back_given_up()
            return
        self._in_threads.discard(attempt)
        if not attempt.ended:
            self._finish(attempt, value, error)
        self._wake_claim_loop_when_idle()

    def _start_in_child(self, attempt: Attempt) -> None:
        self._starter.start_in_child(attempt)
        self._deadlines.watch(attempt)

    def _note_given_up_thread(self) -> None:
        if self._held.board is not None:
            self._held.board.count_given_up_thread()

    def _end_overdue(self, attempt: Attempt) -> None:
        """The time of an attempt is over."""
        if attempt.batch is not None:
            if attempt.lose(Loss.TIMEOUT):
                self._finish(attempt, None, None)
            return
        if attempt.slot is not None:
            if not attempt.lose(Loss.TIMEOUT):
                attempt.slot.cancel()  # it swallowed the first cancellation
            return
        if attempt.lose(Loss.TIMEOUT):
            attempt.given_up = True
            self._in_threads.discard(attempt)
            self._threads.replace_given_up()
            self._note_given_up_thread()
            log.thread_given_up(attempt.record)
            self._finish(attempt, None, None)


def _argument_of_item(attempt: Attempt) -> Any:
    assert attempt.definition is not None
    (argument,), _ = attempt.definition.arguments(attempt.record.payload)
    return argument


def _runs_on_loop(attempt: Attempt) -> bool:
    slot = attempt.slot if attempt.batch is None else attempt.batch.slot
    return slot is not None and not slot.done()
