"""Calls handlers: decodes the arguments, adds what is provided, wraps the call in middleware, and takes the first step.

Most handlers have no middleware and are provided with nothing: for them `first_step` is everything. The others go through
`Invoker`. Middleware runs on the event loop, around `def` handlers too: the slot then waits for a thread, in which the
context variables are those that the middleware has set.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ...core.job import Loss
from ...errors import words_of
from ...handler import context_access
from ...handler.context import Context
from ...handler.context_access import current_handler
from ...handler.item import BatchContext
from ...observe import log
from ...tasks.middleware import run_with_middleware, wrap_handler, wrap_prepared
from ...tasks.providers import Opened, Provided
from .attempt import Attempt
from .batches import Batch
from .threads import Threads

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

# errors that a future cannot hold, or that mean something else there; and no Ctrl-C arrives in a thread
_NOT_FOR_FUTURES = (StopIteration, GeneratorExit, asyncio.CancelledError, KeyboardInterrupt)


FirstStep = tuple[Coroutine[Any, Any, Any] | None, Any]  # a handler and what it waits for; or None and its value


def first_step_of(coroutine: Coroutine[Any, Any, Any]) -> FirstStep:
    """Take the first step of a coroutine. For a handler that never waits it is also the last."""
    try:
        return coroutine, coroutine.send(None)
    except StopIteration as end:
        return None, end.value


def first_step(definition: TaskDefinition, context: Context, payload: str) -> FirstStep:
    """Start a handler without middleware, in its own context variables."""
    current_handler.set(context)
    return first_step_of(call(definition, context, payload))


class Invoker:
    """Calls handlers that have middleware or are provided with something. `gave_up` is called when a thread is given up."""

    def __init__(self, opened: Opened, concurrency: int, gave_up: Callable[[], None]) -> None:
        self._gave_up = gave_up
        self._opened = opened
        self._provided: dict[TaskDefinition, Provided] = {}
        self._loop = asyncio.get_running_loop()
        self._threads: Threads[_ThreadCall] = Threads(concurrency, _ThreadCall.do, self._finish_call)
        self._closed = False

    def first_step(self, attempt: Attempt, context: Context) -> FirstStep:
        """As `first_step`, for any handler that runs on the event loop or has middleware."""
        definition = attempt.definition
        assert definition is not None
        current_handler.set(context)
        if definition.provided:
            context_access.provide(context, self._provided_to(definition))
        if definition.surrounded and not definition.skins:
            return first_step_of(self._wrap(definition, attempt, context))
        inner = partial(call, definition, context, attempt.record.payload)
        return first_step_of(cast(Coroutine[Any, Any, Any], wrap_prepared(definition.skins, context, inner)()))

    def first_step_of_batch(self, batch: Batch, context: BatchContext) -> FirstStep:
        """As `first_step`, for a batch."""
        definition = batch.definition
        current_handler.set(context)
        context_access.provide(context, self._provided_to(definition))
        inner = partial(self._inner_of_batch, definition, batch, context)
        return first_step_of(run_with_middleware(definition.middleware, definition.per_job, context, inner))

    def in_thread(self, attempt: Attempt, context: Context) -> Any:
        """Call a blocking handler in this thread, with its own context variables. Returns its value."""
        definition = attempt.definition
        assert definition is not None
        current_handler.set(context)
        if not definition.plain:
            context_access.provide(context, self._provided_to(definition))
        return call(definition, context, attempt.record.payload)

    def close(self) -> None:
        self._closed = True
        self._threads.close()

    def _provided_to(self, definition: TaskDefinition) -> Provided:
        provided = self._provided.get(definition)
        if provided is None:
            provided = self._provided[definition] = self._opened.given(definition.provided)
        return provided

    def _wrap(self, definition: TaskDefinition, attempt: Attempt, context: Context) -> Coroutine[Any, Any, Any]:
        inner = partial(call, definition, context, attempt.record.payload)
        if definition.run_in == "thread":
            inner = partial(self._await_thread, attempt, inner)
        if definition.per_job:
            return run_with_middleware(definition.middleware, definition.per_job, context, inner)
        return cast(Coroutine[Any, Any, Any], wrap_handler(definition.middleware, context, inner)())

    async def _inner_of_batch(self, definition: TaskDefinition, batch: Batch, context: BatchContext) -> object:
        items = batch.items
        context_access.provide_items(context)
        options: dict[str, Any] = {}
        arguments = definition.complete([items], options, context)
        run = partial(definition.handler, *arguments, **options)
        if definition.run_in == "thread":
            return await self._await_thread(batch, run)
        return await run()

    async def _await_thread(self, runs: Attempt | Batch, run: Callable[[], Any]) -> object:
        """Wait for a thread, which nobody can stop. After a loss it may take its time, but not past its timeout."""
        call = _ThreadCall(run, contextvars.copy_context(), self._loop.create_future())
        self._threads.feed([call])
        while True:
            try:
                return await asyncio.shield(call.over)
            except asyncio.CancelledError:
                if runs.lost in (None, Loss.TIMEOUT) or self._closed:
                    call.given_up = True
                    self._threads.replace_given_up()
                    self._gave_up()
                    log.thread_given_up(runs.record)
                    raise

    def _finish_call(self, call: _ThreadCall, value: Any, error: BaseException | None) -> None:
        if call.given_up:
            self._threads.take_back_given_up()
        elif isinstance(error, _NOT_FOR_FUTURES):
            message = f"the handler raised {type(error).__name__}: {words_of(error)}"
            call.over.set_exception(RuntimeError(message.removesuffix(": ")))
        elif error is not None:
            call.over.set_exception(error)
        else:
            call.over.set_result(value)


class _ThreadCall:
    """A handler in a thread that a slot waits for."""

    __slots__ = ("given_up", "over", "run", "variables")

    def __init__(self, run: Callable[[], Any], variables: contextvars.Context, over: asyncio.Future[Any]) -> None:
        self.run = run
        self.variables = variables
        self.over = over
        self.given_up = False

    def do(self) -> Any:
        return self.variables.run(self.run)


def call(definition: TaskDefinition, context: Context, payload: str) -> Any:
    """Call the handler of a task. Returns its value, or its coroutine."""
    arguments, options = definition.arguments(payload)
    return definition.handler(*definition.complete(arguments, options, context), **options)
