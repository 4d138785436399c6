"""A child process for handlers with `run_in="process"`: imports the app, then runs one job after the other for its worker.

The handler runs in the main thread, and a `def` runs while no event loop does, as it would in a thread. Another thread
listens to the worker, so that the handler hears of a loss, and so that the child ends when its worker is gone. The end of a
handler is judged here (`retry_on`, outcomes) and told as data.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import importlib
import importlib.util
import inspect
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...core.clock import reader
from ...core.job import Loss
from ...core.lifecycle import HandedBack
from ...core.outcome import Outcome
from ...core.record import NewJob, Record
from ...errors import HoldLost, InvalidCall, StoreUnavailable, words_of
from ...handler.context import Context, _current
from ...storage.contract import KvEntry, KvWrite
from ...tasks.middleware import run_with_middleware
from ...tasks.providers import Opened
from ..health.store_trouble import is_store_trouble
from ..worker import Worker
from .attempt import STORE_FAILED, Attempt, failed, outcome_within, said_of
from .child_protocol import LENGTH, UNAVAILABLE, Begin, Message, end_of, packed, unpacked
from .invocation import call

if TYPE_CHECKING:
    from ...storage.contract import StoreTransaction
    from ...tasks.definition import TaskDefinition

LATE = 2.0  # seconds after the timeout: our worker should have killed us, and could not


class Line:
    """The socket to the worker. Words may be said from any thread; one thread listens."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._questions: dict[int, Future[str]] = {}
        self._number = 0
        self.jobs: SimpleQueue[Message] = SimpleQueue()
        self.context: Context | None = None
        self.task: asyncio.Task[Any] | None = None

    def say(self, message: Message) -> None:
        with self._lock:
            self._end.sendall(packed(message))

    def ask(self, word: str, text: str = "") -> Future[str]:
        """Say something that the worker answers."""
        answer: Future[str] = Future()
        with self._lock:
            self._number += 1
            self._questions[self._number] = answer
            self._end.sendall(packed(Message(word, number=self._number, text=text)))
        return answer

    def listen(self) -> None:
        """Until the worker is gone; then nobody wants to hear of the job any more."""
        with suppress(OSError):
            while True:
                size = self._read(LENGTH)
                self._heard(unpacked(self._read(int.from_bytes(size, "big"))))
        os._exit(1)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (some := self._end.recv(size - len(data))):
                raise OSError("the worker is gone")
            data += some
        return data

    def _heard(self, message: Message) -> None:
        match message.word:
            case "lost":
                self._lost(Loss(message.text))
            case "heard":
                answer = self._questions.pop(message.number)
                if message.kind == UNAVAILABLE:
                    answer.set_exception(StoreUnavailable(message.text).at(message.data))
                elif message.kind:
                    answer.set_exception(HoldLost(message.text, Loss(message.kind)))
                elif message.text:
                    answer.set_exception(InvalidCall(message.text))
                else:
                    answer.set_result(message.data)
            case _:
                self.jobs.put(message)

    def _lost(self, reason: Loss) -> None:
        context, task = self.context, self.task
        if context is not None:
            context.lost._set(reason)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


class PipeSpeaker:
    """Carries what a handler says on its way to the worker, who tells the store."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def progress(self, context: Context, text: str) -> None:
        await asyncio.wrap_future(self._line.ask("progress", text))
        context._record.progress = text
        context._job = None

    async def log(self, context: Context, line: str) -> None:
        await asyncio.wrap_future(self._line.ask("log", line))

    async def texts(self, job: str, kind: str) -> list[KvEntry]:
        told = await asyncio.wrap_future(self._line.ask("texts", kind))
        return msgspec.json.decode(told, type=list[KvEntry])

    async def keep(self, write: KvWrite) -> Loss | None:
        told = await asyncio.wrap_future(self._line.ask("keep", msgspec.json.encode(write).decode()))
        return Loss(told) if told else None

    async def now(self) -> int:
        told: str = await asyncio.wrap_future(self._line.ask("now"))
        return int(told)

    def undo(self, context: Context, undo: NewJob) -> None:
        self._line.ask("undo", msgspec.json.encode(undo).decode())  # heard in order, before the end

    async def begin(self, context: Context) -> StoreTransaction:
        raise InvalidCall(
            'ctx.transaction() does not reach into a task with run_in="process": the job is completed by the worker, in '
            "another process. Run the task in the loop or in a thread, or hand the result to a task that does."
        )


def main(descriptor: int) -> None:
    """The life of a child."""
    # a Ctrl-C, and a stop of the whole service, are the worker's to judge
    signal.signal(signal.SIGINT, _nothing)
    signal.signal(signal.SIGTERM, _nothing)
    _die_with_parent()
    faulthandler.enable()
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    line = Line(end)
    threading.Thread(target=line.listen, name="perdure line", daemon=True).start()
    try:
        app = _app(msgspec.json.decode(line.jobs.get().text, type=Begin))
    except BaseException as error:
        line.say(Message("failed", text=f"{type(error).__name__}: {words_of(error)}"))
        raise
    line.say(Message("ready"))
    with asyncio.Runner() as runner:
        jobs = _Jobs(app, line, runner)
        while True:
            jobs.run(line.jobs.get())


class _Jobs:
    """Runs handlers, one at a time."""

    def __init__(self, app: Any, line: Line, runner: asyncio.Runner) -> None:
        self._app = app
        self._line = line
        self._runner = runner
        self._opened = Opened()
        self._now = reader(app.clock)
        self._blocking: _BlockingCall | None = None

    def run(self, order: Message) -> None:
        record = msgspec.json.decode(order.text, type=Record)
        definition: TaskDefinition | None = self._app.definitions().get(record.task)
        record.started_at = order.number
        attempt = Attempt(record, definition, 0.0, 0.0, 0.0, started_at=order.number)
        context = Context(self._app, record, record.leased_by or "", PipeSpeaker(self._line), None)
        if order.data:
            context._parents = msgspec.json.decode(order.data, type=tuple[tuple[str, str | None], ...])
        attempt.context = self._line.context = context
        if record.timeout is not None:
            faulthandler.dump_traceback_later(record.timeout / 1_000_000 + LATE, exit=True)
        value, error = None, None
        try:
            value = self._run_until_done(self._handled(attempt, context))
        except BaseException as raised:
            error = raised
        faulthandler.cancel_dump_traceback_later()
        self._line.context = self._line.task = None
        self._line.say(self._end(attempt, context, value, error, order.kind))

    def _run_until_done(self, work: Coroutine[Any, Any, object]) -> object:
        """Run the loop until this work is done. The loop stops for each blocking handler, which is called here."""
        loop = self._runner.get_loop()
        task = loop.create_task(work)
        task.add_done_callback(lambda _: loop.stop())
        while not task.done():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # the task has ended with it as well
                if not task.done():
                    raise
            if (blocking := self._blocking) is not None:
                self._blocking = None
                blocking.run()
        return task.result()

    async def _call(self, definition: TaskDefinition, context: Context, payload: str) -> object:
        run = partial(call, definition, context, payload)
        value = run() if definition.is_async else await self._call_without_loop(run)
        return await value if inspect.isawaitable(value) else value

    async def _call_without_loop(self, run: Callable[[], Any]) -> object:
        """Call a blocking handler while the loop stands still, so that it may use blocking verbs and `asyncio.run`. Only
        `ctx.lost` tells it of a loss: cancelling the task would not stop it, and would hide how it ended."""
        loop, task = asyncio.get_running_loop(), self._line.task
        self._blocking = blocking = _BlockingCall(run, contextvars.copy_context(), loop.create_future())
        self._line.task = None
        loop.stop()
        try:
            value, error = await blocking.ended
        finally:
            self._line.task = task
        if error is not None:
            raise error
        return value

    async def _handled(self, attempt: Attempt, context: Context) -> object:
        definition = attempt.definition
        if definition is None:
            raise InvalidCall(
                f"no task named {attempt.record.task!r} is registered where the child process has looked: it imports the "
                "app's module, those in Perdure(imports=[…]) and the module of the handler"
            )
        self._line.task = asyncio.current_task()
        _current.set(context)
        await self._opened.open(each for each in definition.provided.values() if each.scope == "worker")
        context._given = self._opened.given(definition.provided)
        inner = partial(self._call, definition, context, attempt.record.payload)
        return await run_with_middleware(definition.middleware, definition.per_job, context, inner)

    def _end(
        self, attempt: Attempt, context: Context, value: object, error: BaseException | None, place: str
    ) -> Message:
        try:
            if error is not None and is_store_trouble(error, place):
                return end_of(HandedBack(STORE_FAILED))
            if error is not None and context.lost.is_set() and not isinstance(outcome_within(error), Outcome):
                return Message("stopped")
            return end_of(said_of(attempt, value, error, self._now))
        except BaseException as unfit:  # the value and the error may be of the user's making
            return end_of(failed(attempt, unfit, self._now, retryable=True))


class _BlockingCall(NamedTuple):
    """A blocking handler that is to be called, and where its value and its error go."""

    handler: Callable[[], Any]
    variables: contextvars.Context
    ended: asyncio.Future[tuple[Any, BaseException | None]]

    def run(self) -> None:
        if self.ended.done():  # the task was cancelled before the loop stopped
            return
        try:
            value = self.variables.run(self.handler)
        except BaseException as error:
            self.ended.set_result((None, error))
        else:
            self.ended.set_result((value, None))


# ---- where the app is ------------------------------------------------------------------------------
def _app(begin: Begin) -> Any:
    Worker.refused = (
        "a worker was started while a child process imported its program: put what starts it under "
        '`if __name__ == "__main__":`'
    )
    if begin.file is not None:
        _load_script(begin.file)
    module = importlib.import_module(begin.module) if begin.module is not None else sys.modules["__main__"]
    app: Any = getattr(module, begin.attribute)
    for name in (*app.imports, *begin.modules):
        importlib.import_module(name)
    return app


def _load_script(path: str) -> None:
    """The program that the worker is part of, as a module under another name than __main__: what it does when it is started
    is not done again."""
    spec = importlib.util.spec_from_file_location("__mp_main__", path)
    if spec is None or spec.loader is None:
        raise InvalidCall(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    spec.loader.exec_module(module)


def _die_with_parent() -> None:
    """At once, where the system can do that: a handler that holds the interpreter's lock keeps our listener from hearing."""
    if sys.platform == "linux":
        import ctypes

        with suppress(Exception):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _nothing(*_: object) -> None: ...
