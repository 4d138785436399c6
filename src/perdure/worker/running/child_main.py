"""A child process for handlers with `run_in="process"`: imports the app, then runs one job after the other for its
worker.

The handler runs in the main thread. A `def` runs while no event loop does, as it would in a thread. Another thread reads
what the worker sends, so that the handler learns of a loss, and so that the child ends when its worker is gone. The child
decides what the end of a handler means (`retry_on`, outcomes) and sends the report as data.
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
from ...handler import context_access
from ...handler.context import Context
from ...handler.context_access import current_handler
from ...storage.contract import KvEntry, KvWrite
from ...tasks.middleware import run_with_middleware
from ...tasks.providers import Opened
from ..health.store_trouble import is_store_trouble
from ..worker import Worker
from .attempt import STORE_FAILED, Attempt, failure_of, outcome_within, report_of
from .child_protocol import LENGTH, UNAVAILABLE, Begin, Message, end_message, pack, unpack
from .invocation import call

if TYPE_CHECKING:
    from ...storage.contract import StoreTransaction
    from ...tasks.definition import TaskDefinition

LATE = 2.0  # seconds after the timeout: the worker should have killed this process, and could not


class WorkerConnection:
    """The socket to the worker. Any thread may send; one thread reads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._questions: dict[int, Future[str]] = {}
        self._number = 0
        self.jobs: SimpleQueue[Message] = SimpleQueue()
        self.context: Context | None = None
        self.task: asyncio.Task[Any] | None = None

    def send(self, message: Message) -> None:
        with self._lock:
            self._end.sendall(pack(message))

    def ask(self, type: str, text: str = "") -> Future[str]:
        """Send a message that the worker answers."""
        answer: Future[str] = Future()
        with self._lock:
            self._number += 1
            self._questions[self._number] = answer
            self._end.sendall(pack(Message(type, number=self._number, text=text)))
        return answer

    def listen(self) -> None:
        """Read until the worker is gone; then nobody needs this process any more."""
        with suppress(OSError):
            while True:
                size = self._read(LENGTH)
                self._receive(unpack(self._read(int.from_bytes(size, "big"))))
        os._exit(1)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (some := self._end.recv(size - len(data))):
                raise OSError("the worker is gone")
            data += some
        return data

    def _receive(self, message: Message) -> None:
        match message.type:
            case "lost":
                self._lose(Loss(message.text))
            case "answer":
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

    def _lose(self, reason: Loss) -> None:
        context, task = self.context, self.task
        if context is not None:
            context_access.lose(context, reason)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


class PipeContextBackend:
    """Sends progress, log lines and texts of a handler to the worker, which writes them to the store."""

    def __init__(self, connection: WorkerConnection) -> None:
        self._connection = connection

    async def progress(self, context: Context, text: str) -> None:
        await asyncio.wrap_future(self._connection.ask("progress", text))
        context_access.set_progress(context, text)

    async def log(self, context: Context, line: str) -> None:
        await asyncio.wrap_future(self._connection.ask("log", line))

    async def texts(self, job: str, kind: str) -> list[KvEntry]:
        answer = await asyncio.wrap_future(self._connection.ask("texts", kind))
        return msgspec.json.decode(answer, type=list[KvEntry])

    async def keep(self, write: KvWrite) -> Loss | None:
        answer = await asyncio.wrap_future(self._connection.ask("keep", msgspec.json.encode(write).decode()))
        return Loss(answer) if answer else None

    async def now(self) -> int:
        answer: str = await asyncio.wrap_future(self._connection.ask("now"))
        return int(answer)

    def undo(self, context: Context, undo: NewJob) -> None:
        self._connection.ask("undo", msgspec.json.encode(undo).decode())  # the worker reads it before the end

    async def begin(self, context: Context) -> StoreTransaction:
        raise InvalidCall(
            'ctx.transaction() does not reach into a task with run_in="process": the job is completed by the worker, in '
            "another process. Run the task in the loop or in a thread, or hand the result to a task that does."
        )


def main(descriptor: int) -> None:
    """Run jobs until the worker is gone."""
    # after a Ctrl-C, or a stop of the whole service, the worker decides when this process ends
    signal.signal(signal.SIGINT, _nothing)
    signal.signal(signal.SIGTERM, _nothing)
    _die_with_parent()
    faulthandler.enable()
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    connection = WorkerConnection(end)
    threading.Thread(target=connection.listen, name="perdure line", daemon=True).start()
    try:
        app = _app(msgspec.json.decode(connection.jobs.get().text, type=Begin))
    except BaseException as error:
        connection.send(Message("failure_of", text=f"{type(error).__name__}: {words_of(error)}"))
        raise
    connection.send(Message("ready"))
    with asyncio.Runner() as runner:
        jobs = _Jobs(app, connection, runner)
        while True:
            jobs.run(connection.jobs.get())


class _Jobs:
    """Runs handlers, one at a time."""

    def __init__(self, app: Any, connection: WorkerConnection, runner: asyncio.Runner) -> None:
        self._app = app
        self._connection = connection
        self._runner = runner
        self._opened = Opened()
        self._now = reader(app.clock)
        self._blocking: _BlockingCall | None = None

    def run(self, order: Message) -> None:
        record = msgspec.json.decode(order.text, type=Record)
        definition: TaskDefinition | None = self._app.definitions().get(record.task)
        record.started_at = order.number
        attempt = Attempt(record, definition, 0.0, 0.0, 0.0, started_at=order.number)
        context = Context(self._app, record, record.leased_by or "", PipeContextBackend(self._connection), None)
        if order.data:
            parents = msgspec.json.decode(order.data, type=tuple[tuple[str, str | None], ...])
            context_access.set_parents(context, parents)
        attempt.context = self._connection.context = context
        if record.timeout is not None:
            faulthandler.dump_traceback_later(record.timeout / 1_000_000 + LATE, exit=True)
        value, error = None, None
        try:
            value = self._run_until_done(self._call_handler(attempt, context))
        except BaseException as raised:
            error = raised
        faulthandler.cancel_dump_traceback_later()
        self._connection.context = self._connection.task = None
        self._connection.send(self._end(attempt, context, value, error, order.kind))

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
        """Call a blocking handler while the loop stands still, so that it may use blocking verbs and `asyncio.run`. It
        learns of a loss only through `ctx.lost`: cancelling the task would not stop it, and would hide how it ended."""
        loop, task = asyncio.get_running_loop(), self._connection.task
        self._blocking = blocking = _BlockingCall(run, contextvars.copy_context(), loop.create_future())
        self._connection.task = None
        loop.stop()
        try:
            value, error = await blocking.ended
        finally:
            self._connection.task = task
        if error is not None:
            raise error
        return value

    async def _call_handler(self, attempt: Attempt, context: Context) -> object:
        definition = attempt.definition
        if definition is None:
            raise InvalidCall(
                f"no task named {attempt.record.task!r} is registered where the child process has looked: it imports the "
                "app's module, those in Perdure(imports=[…]) and the module of the handler"
            )
        self._connection.task = asyncio.current_task()
        current_handler.set(context)
        await self._opened.open(each for each in definition.provided.values() if each.scope == "worker")
        context_access.provide(context, self._opened.given(definition.provided))
        inner = partial(self._call, definition, context, attempt.record.payload)
        return await run_with_middleware(definition.middleware, definition.per_job, context, inner)

    def _end(
        self, attempt: Attempt, context: Context, value: object, error: BaseException | None, place: str
    ) -> Message:
        try:
            if error is not None and is_store_trouble(error, place):
                return end_message(HandedBack(STORE_FAILED))
            if error is not None and context.lost.is_set() and not isinstance(outcome_within(error), Outcome):
                return Message("stopped")
            return end_message(report_of(attempt, value, error, self._now))
        except BaseException as unfit:  # the classes of the value and the error may be the user's
            return end_message(failure_of(attempt, unfit, self._now, retryable=True))


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
    """Load the worker's program as a module that is not named __main__, so that what it does when it is started is not done
    again."""
    spec = importlib.util.spec_from_file_location("__mp_main__", path)
    if spec is None or spec.loader is None:
        raise InvalidCall(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    spec.loader.exec_module(module)


def _die_with_parent() -> None:
    """Let the system kill this process when the worker dies, where it can: while a handler holds the interpreter's lock, no
    thread can notice it."""
    if sys.platform == "linux":
        import ctypes

        with suppress(Exception):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _nothing(*_: object) -> None: ...
