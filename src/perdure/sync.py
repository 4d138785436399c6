"""The blocking side: one daemon thread with an event loop of its own, shared by all blocking forms of this process.

A blocking verb is started in that loop while the caller's thread waits. Some work must happen in the caller's thread all
the same (a connection that belongs to it): `in_caller` hands it back, and the waiting thread does it.

A forked child starts a thread of its own. At exit the loop's async generators are ended first, which closes the stores.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

from .errors import InvalidCall

T = TypeVar("T")

_END = 5.0  # seconds that the stores get to close at exit
_NOT_THE_CALLER = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    contextlib.__file__,
)  # who called is outside of these


class _LoopThread:
    """The thread and its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="perdure sync", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def end(self) -> None:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self.loop.shutdown_asyncgens(), self.loop).result(_END)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_END)


class _Caller:
    """A thread that waits for a verb, and does what only it may do meanwhile."""

    def __init__(self) -> None:
        self.box: SimpleQueue[Callable[[], Any] | _Done] = SimpleQueue()
        self.thread = threading.get_ident()

    def wait(self) -> Any:
        while True:
            told = self.box.get()
            if isinstance(told, _Done):
                return told.value()
            told()


class _Done:
    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def value(self) -> Any:
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise InvalidCall("the event loop of this verb was closed while it waited") from None


_lock = threading.Lock()
_running: _LoopThread | None = None
_waiting_caller: ContextVar[_Caller | None] = ContextVar("perdure.caller", default=None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run(verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async verb in the loop thread and wait for it."""
    return run_on(None, verb)


def run_on(loop: asyncio.AbstractEventLoop | None, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async verb in a given loop (None: the loop thread's) and wait for it."""
    _warn_in_loop(verb, loop)
    return _run_on(loop, verb)


def _run_on(loop: asyncio.AbstractEventLoop | None, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = loop or _loop_thread().loop
    if _running_loop() is loop:
        raise InvalidCall("a blocking form inside its own event loop would wait for itself; await the verb instead")
    caller = _Caller()
    context = copy_context()
    context.run(_waiting_caller.set, caller)
    task: asyncio.Task[T] | None = None

    def start() -> None:
        nonlocal task
        task = loop.create_task(_await_verb(verb), context=context)
        task.add_done_callback(lambda done: caller.box.put(_Done(done)))

    loop.call_soon_threadsafe(start)
    try:
        value: T = caller.wait()
    except BaseException as error:
        if task is not None and not task.done():  # an interrupt reached the waiting thread
            loop.call_soon_threadsafe(task.cancel)
        raise error
    return value


def iterate(verb: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """An async iterator as a plain one, each step run in the loop thread."""

    async def begin() -> AsyncIterator[T]:
        return verb()

    _warn_in_loop(verb)
    steps = _run_on(None, begin)
    try:
        while True:
            try:
                yield _run_on(None, lambda: _step(steps))
            except StopAsyncIteration:
                return
    finally:
        close = getattr(steps, "aclose", None)
        if close is not None:
            _run_on(None, close)


@contextmanager
def manage(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """An async context manager as a plain one, entered and left in the loop thread."""

    async def begin() -> tuple[AbstractAsyncContextManager[T], T]:
        manager = make()
        return manager, await manager.__aenter__()

    async def end(error: BaseException | None) -> bool | None:
        return await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)

    _warn_in_loop(make)
    manager, value = _run_on(None, begin)
    try:
        yield value
    except BaseException as error:
        raised = error
        if not _run_on(None, lambda: end(raised)):
            raise
    else:
        _run_on(None, lambda: end(None))


async def in_caller(work: Callable[[], T]) -> T:
    """Do something in the thread of whoever called the verb: here, unless it waits for a blocking form."""
    caller = _waiting_caller.get()
    if caller is None:
        return work()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def done(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def do() -> None:
        try:
            value = work()
        except Exception as error:
            loop.call_soon_threadsafe(done, None, error)
        else:
            loop.call_soon_threadsafe(done, value, None)

    caller.box.put(do)
    return await future


async def in_loop_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do something in the loop thread as well, if there is one and this is not it."""
    running = _running
    if running is not None and running.loop is not asyncio.get_running_loop():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), running.loop))


def run_if_running(verb: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an async verb in the loop thread if there is one; what was never opened there needs no closing."""
    if _running is not None and _running_loop() is not _running.loop:
        _run_on(None, verb)


def frame_of_caller() -> FrameType | None:
    """The frame of the thread that waits for the verb which runs now, if it was called in its blocking form."""
    caller = _waiting_caller.get()
    return None if caller is None else sys._current_frames().get(caller.thread)


def is_blocking() -> bool:
    """Whether the verb that runs now was called in its blocking form."""
    return _waiting_caller.get() is not None


def _warn_in_loop(verb: Callable[..., Any], wanted: asyncio.AbstractEventLoop | None = None) -> None:
    """Warn a caller who blocks the event loop that runs in this thread. `verb` is a lambda of a blocking form, and its
    qualified name tells which."""
    running = _running_loop()
    if running is None or running is (wanted or _loop_thread().loop):  # the latter is refused
        return
    name = verb.__qualname__.split(".")[1]
    spelled = "with app.sync" if name in ("__enter__", "__exit__") else f".sync.{name}(…)"
    message = (
        f"{spelled} blocks the event loop that runs here until it is done: no other task of it goes on; "
        "await the verb without .sync"
    )
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_CALLER):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


async def _await_verb(verb: Callable[[], Awaitable[T]]) -> T:
    return await verb()


async def _step(steps: AsyncIterator[T]) -> T:
    return await anext(steps)


def _loop_thread() -> _LoopThread:
    global _running
    with _lock:
        if _running is None:
            _running = _LoopThread()
        return _running


@atexit.register
def _end() -> None:
    global _running
    running, _running = _running, None
    if running is not None:
        running.end()


def _after_fork() -> None:
    global _running, _lock
    _running = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
