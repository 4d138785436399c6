"""Child processes for handlers with `run_in="process"`: each can be killed without harm to any other job.

Children are spawned, never forked. One is ready from the start; others are started as they are needed and kept for the next
job. After many jobs a child is replaced, against leaks. Slot, lease and deadline of such a job are those of the slot, as for
every handler; this module only sends the job to the child and reads what comes back.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.clock import MicrosReader
from ...core.job import Loss
from ...core.record import NewJob
from ...errors import HoldLost, InvalidCall, StoreUnavailable, words_of
from ...handler import context_access
from ...handler.context import Context, StoreWait
from ...observe import log
from ...storage.contract import KvWrite
from ..health.crash_evidence import Tail, ending, fault
from ..host import HostApp
from .attempt import Attempt, ChildLost, ChildReport
from .child_protocol import ANSWERED, LENGTH, LONGEST, UNAVAILABLE, Begin, Message, pack, report_in, unpack
from .context_backend import StoreContextBackend

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

JOBS = 1_000  # after which a child is replaced
KEPT = os.cpu_count() or 1  # children that are kept when there is nothing to do
STOPS_WITHIN = 1.0  # seconds for a handler that was told to stop, but at a timeout
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from perdure.worker.running.child_main import main; main(int(sys.argv[1]))"
)


class Processes:
    """The children of one worker."""

    def __init__(
        self, app: HostApp, backend: StoreContextBackend, now: MicrosReader, started: Callable[[Attempt], None]
    ) -> None:
        self._app = app
        self._backend = backend
        self._now = now
        self._started = started
        self._begin: Begin | None = None
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._promised: asyncio.Task[None] | None = None  # a child that is being started ahead of its job
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def prepare(self, definitions: Iterable[TaskDefinition]) -> None:
        """Find out how children get at the app, and start one, if any task needs them. InvalidCall if they cannot."""
        tasks = [each for each in definitions if each.run_in == "process"]
        if tasks:
            self._begin = locate_app(self._app, tasks)
            self._promised = self._spawn(self._one_ahead())

    async def run(self, attempt: Attempt, context: Context) -> object:
        """Run a handler in a child process. Its outcome comes as `ChildReport`. Cancelling this stops or kills the child."""
        child = await self._free_child()
        usable = False
        try:
            self._started(attempt)
            parents = msgspec.json.encode(attempt.parents).decode() if attempt.parents else ""
            order = msgspec.json.encode(attempt.record).decode()
            run = Message("run", attempt.started_at or 0, kind=self._backend.place, text=order, data=parents)
            child.send(run)
            try:
                end = await self._end(child, context)
            except asyncio.CancelledError:
                end = await self._stop_or_kill(child, context, attempt.lost)
            usable = True
        finally:
            self._back(child, usable)
        if end.type == "stopped":
            raise asyncio.CancelledError
        raise ChildReport(report_in(end))

    async def close(self) -> None:
        self._closed = True
        for child in self._all:
            child.kill()
        await asyncio.gather(*self._tasks, *(child.wait_for_exit() for child in self._all), return_exceptions=True)

    # -- children ------------------------------------------------------------------------------------
    async def _free_child(self) -> Child:
        promised, self._promised = self._promised, None
        if promised is not None:  # ours, now; who comes next has to start one
            await asyncio.shield(promised)
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            self._spawn(self._end_of(child))
        return await self._new_child()

    async def _new_child(self) -> Child:
        assert self._begin is not None
        child = Child()
        self._all.add(child)
        try:
            await child.begin(self._begin)
        except BaseException:
            self._spawn(self._end_of(child))
            raise
        return child

    async def _end_of(self, child: Child) -> None:
        child.kill()
        await child.wait_for_exit()
        self._all.discard(child)

    async def _one_ahead(self) -> None:
        try:
            self._idle.append(await self._new_child())
        except (InvalidCall, OSError) as error:
            if not self._closed:
                log.child_not_started(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="perdure child")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _back(self, child: Child, usable: bool) -> None:
        child.jobs += 1
        if usable and child.alive and child.jobs < JOBS and len(self._idle) < KEPT and not self._closed:
            self._idle.append(child)
            return
        self._spawn(self._end_of(child))
        if child.jobs >= JOBS and not self._idle and not self._closed:
            self._promised = self._spawn(self._one_ahead())

    # -- one job -------------------------------------------------------------------------------------
    async def _end(self, child: Child, context: Context) -> Message:
        """Read until the job ended, and answer the messages of its handler."""
        while True:
            message = await child.receive()
            if message is None:
                raise await self._explain_loss(child, context)
            if message.type not in ANSWERED:
                return message
            child.send(await self._answer(message, context))

    async def _answer(self, message: Message, context: Context) -> Message:
        data = ""
        try:
            with StoreWait(context):
                data = await self._write(message, context)
        except HoldLost as lost:
            return Message("answer", number=message.number, kind=lost.reason or Loss.ERROR, text=str(lost))
        except StoreUnavailable as error:
            return Message("answer", number=message.number, kind=UNAVAILABLE, text=words_of(error), data=error.place)
        except Exception as error:
            return Message("answer", number=message.number, text=f"{type(error).__name__}: {words_of(error)}")
        return Message("answer", number=message.number, data=data)

    async def _write(self, message: Message, context: Context) -> str:
        """Write a message of the handler to the store. Returns the answer as data."""
        backend = self._backend
        match message.type:
            case "progress":
                await backend.progress(context, message.text)
            case "log":
                await backend.log(context, message.text)
            case "texts":
                texts = await backend.texts(context_access.record_of(context).id, message.text)
                return msgspec.json.encode(texts).decode()
            case "keep":
                lost = await backend.keep(msgspec.json.decode(message.text, type=KvWrite))
                return lost or ""
            case "now":
                return str(await backend.now())
            case "undo":
                backend.undo(context, msgspec.json.decode(message.text, type=NewJob))
        return ""

    async def _stop_or_kill(self, child: Child, context: Context, reason: Loss | None) -> Message:
        """Tell the handler to stop, and give it a moment, but not beyond its timeout. Then kill the child."""
        if reason not in (None, Loss.TIMEOUT):
            child.send(Message("lost", text=reason))
            try:
                async with asyncio.timeout(STOPS_WITHIN):
                    return await self._end(child, context)
            except TimeoutError:
                pass
        child.kill()
        await child.wait_for_exit()
        raise asyncio.CancelledError

    async def _explain_loss(self, child: Child, context: Context) -> ChildLost:
        code = await child.wait_for_exit()
        record = context_access.record_of(context)
        lines = await asyncio.to_thread(child.tail.lines)
        message = f"the process of this job (pid {child.pid}) {ending(code)}"
        evidence = fault(record.attempt, record.leased_by or "", 0, self._now(), message, lines)
        return ChildLost(evidence)


class Child:
    """One child process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        self._end = ours
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            stderr=write,
            pass_fds=(theirs.fileno(),),
        )
        os.close(write)
        theirs.close()
        self.tail = Tail(read)
        self.jobs = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def begin(self, begin: Begin) -> None:
        """Let it import the app."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._end, limit=LONGEST)
        self.send(Message("begin", text=msgspec.json.encode(begin).decode()))
        message = await self.receive()
        if message is None or message.type != "ready":
            why = message.text if message is not None else ending(await self.wait_for_exit())
            raise InvalidCall(f'a child process for tasks with run_in="process" did not start: {why}')

    def send(self, message: Message) -> None:
        assert self._writer is not None
        self._writer.write(pack(message))

    async def receive(self) -> Message | None:
        """The next message; None when the child is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(LENGTH), "big")
            return unpack(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def kill(self) -> None:
        self._process.kill()
        if self._writer is not None:
            self._writer.close()

    async def wait_for_exit(self) -> int:
        """Wait until it has ended. Returns its exit code."""
        return await asyncio.to_thread(self._process.wait)


# ---- where the app is ------------------------------------------------------------------------------
def locate_app(app: Any, tasks: list[TaskDefinition]) -> Begin:
    """Where another process finds this app and these tasks."""
    if sys.platform == "win32":
        raise InvalidCall('run_in="process" needs Linux or macOS')
    main = sys.modules.get("__main__")
    of_main = any(definition.identity[1] == "__main__" for definition in tasks)
    found, attribute = _find_name(app)
    spec = getattr(main, "__spec__", None)  # of `python -m`
    needs_script = spec is None and (found == "__main__" or of_main)
    main_name = None if spec is None else str(spec.name)
    modules = {main_name if name == "__main__" else name for name in (definition.identity[1] for definition in tasks)}
    return Begin(
        module=main_name if found == "__main__" else found,
        file=_script(main) if needs_script else None,
        attribute=attribute,
        modules=tuple(sorted(name for name in modules if name is not None)),
    )


def _find_name(app: Any) -> tuple[str, str]:
    """A module and the name in it that is this app."""
    found = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    ]
    if not found:
        raise InvalidCall(
            'tasks with run_in="process" need an app that a child process can import: assign it to a name at the top level '
            "of a module, app = Perdure(…)"
        )
    return min(found, key=lambda place: (place[0] == "__main__", place))


def _script(main: Any) -> str:
    file: str | None = getattr(main, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise InvalidCall(
            'tasks with run_in="process" need a program that a child process can import: put the app and its tasks in a '
            "module, not in an interactive session"
        )
    return os.path.abspath(file)
