"""How a handler is called: its arguments, its context, its first step, and what stands around it.

Most handlers have nothing around them and are given nothing: `first_step` is all there is to them. The others go
through `Invoker`. Middleware runs in the loop, around `def` handlers too: the slot then waits for a thread, in which the
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
from ...handler.context import Context, _current
from ...handler.item import BatchContext
from ...observe import log
from ...tasks.middleware import run_with_middleware, wrap_handler, wrap_prepared
from ...tasks.providers import Opened, Provided
from .attempt import Attempt
from .batches import Batch
from .threads import Threads

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

# what a future cannot carry, or means otherwise; and no Ctrl-C arrives in a thread
_NOT_FOR_FUTURES = (StopIteration, GeneratorExit, asyncio.CancelledError, KeyboardInterrupt)


Begun = tuple[Coroutine[Any, Any, Any] | None, Any]  # a handler and what it waits for; or None and its value


def first_step_of(coroutine: Coroutine[Any, Any, Any]) -> Begun:
    """Take the first step of a handler, which is the last of one that never waits."""
    try:
        return coroutine, coroutine.send(None)
    except StopIteration as end:
        return None, end.value


def first_step(definition: TaskDefinition, context: Context, payload: str) -> Begun:
    """Begin a handler that has nothing around it, in its own context variables."""
    _current.set(context)
    arguments, options = definition.arguments(payload)
    if definition.takes_context:
        coroutine = definition.handler(context, *arguments, **options)
    elif options:
        coroutine = definition.handler(*arguments, **options)
    else:
        coroutine = definition.handler(*arguments)
    try:  # as `first_step_of`, without another call
        return coroutine, coroutine.send(None)
    except StopIteration as end:
        return None, end.value


class Invoker:
    """Calls handlers that have something around them, or are given something."""

    def __init__(self, opened: Opened, concurrency: int, gave_up: Callable[[], None]) -> None:
        self._gave_up = gave_up
        self._opened = opened
        self._given: dict[TaskDefinition, Provided] = {}
        self._loop = asyncio.get_running_loop()
        self._threads: Threads[_ThreadCall] = Threads(concurrency, _ThreadCall.do, self._back)
        self._closed = False

    def first_step(self, attempt: Attempt, context: Context) -> Begun:
        """As `first_step`, for any handler that runs in the loop or has something around it."""
        definition = attempt.definition
        assert definition is not None
        _current.set(context)
        if definition.provided:
            context._given = self._given_to(definition)
        if definition.surrounded and not definition.skins:
            return first_step_of(self._surrounded(definition, attempt, context))
        inner = partial(call, definition, context, attempt.record.payload)
        return first_step_of(cast(Coroutine[Any, Any, Any], wrap_prepared(definition.skins, context, inner)()))

    def first_step_of_batch(self, batch: Batch, context: BatchContext) -> Begun:
        """As `first_step`, for a batch."""
        definition = batch.definition
        _current.set(context)
        context._given = self._given_to(definition)
        inner = partial(self._inner_of_batch, definition, batch, context)
        return first_step_of(run_with_middleware(definition.middleware, definition.per_job, context, inner))

    def in_thread(self, attempt: Attempt, context: Context) -> Any:
        """The value of a handler that blocks, called in a thread, with context variables of its own."""
        definition = attempt.definition
        assert definition is not None
        _current.set(context)
        if not definition.plain:
            context._given = self._given_to(definition)
        return call(definition, context, attempt.record.payload)

    def close(self) -> None:
        self._closed = True
        self._threads.close()

    def _given_to(self, definition: TaskDefinition) -> Provided:
        given = self._given.get(definition)
        if given is None:
            given = self._given[definition] = self._opened.given(definition.provided)
        return given

    def _surrounded(self, definition: TaskDefinition, attempt: Attempt, context: Context) -> Coroutine[Any, Any, Any]:
        inner = partial(call, definition, context, attempt.record.payload)
        if definition.run_in == "thread":
            inner = partial(self._await_thread, attempt, inner)
        if definition.per_job:
            return run_with_middleware(definition.middleware, definition.per_job, context, inner)
        return cast(Coroutine[Any, Any, Any], wrap_handler(definition.middleware, context, inner)())

    async def _inner_of_batch(self, definition: TaskDefinition, batch: Batch, context: BatchContext) -> object:
        items = batch.items
        for item in items:
            item._given = context._given
        options: dict[str, Any] = {}
        arguments = definition.complete([items], options, context)
        run = partial(definition.handler, *arguments, **options)
        if definition.run_in == "thread":
            return await self._await_thread(batch, run)
        return await run()

    async def _await_thread(self, told: Attempt | Batch, run: Callable[[], Any]) -> object:
        """Wait for a thread. Nobody can stop it: told to stop it may take its time, but not past its timeout."""
        call = _ThreadCall(run, contextvars.copy_context(), self._loop.create_future())
        self._threads.feed([call])
        while True:
            try:
                return await asyncio.shield(call.over)
            except asyncio.CancelledError:
                if told.lost in (None, Loss.TIMEOUT) or self._closed:
                    call.given_up = True
                    self._threads.give_up_one()
                    self._gave_up()
                    log.thread_given_up(told.record)
                    raise

    def _back(self, call: _ThreadCall, value: Any, error: BaseException | None) -> None:
        if call.given_up:
            self._threads.gave_back_one()
        elif isinstance(error, _NOT_FOR_FUTURES):
            told = f"the handler raised {type(error).__name__}: {words_of(error)}"
            call.over.set_exception(RuntimeError(told.removesuffix(": ")))
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
    """The handler's value, or its coroutine."""
    arguments, options = definition.arguments(payload)
    return definition.handler(*definition.complete(arguments, options, context), **options)
