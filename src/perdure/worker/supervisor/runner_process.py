"""One runner as its supervisor sees it: the process, the channel to it, its status board, the end of its stderr."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from ...core.clock import boottime
from ...core.record import Hold
from ...observe import log
from ..health.crash_evidence import Tail
from ..leases.status_board import STARTED, Seen, SupervisorBoard, new_board
from .channel import Channel, ChannelMessage

CANCELLED_FOR = 5.0  # seconds that a handler may take to stop after its time was over and it was cancelled
SILENT_FOR = 5.0  # seconds without a sign of life after which its loop counts as blocked
BLOCKED_FOR = 1.0  # seconds for a handler that could not be cancelled, because it blocks its runner


class Phase(Enum):
    STARTING = auto()  # imports the app
    READY = auto()  # waits for its turn
    WORKING = auto()
    LEAVING = auto()  # finishes what runs
    CONDEMNED = auto()  # about to be killed


class RunnerProcess:
    """A runner process."""

    def __init__(self, command: Sequence[str], name: str, options: dict[str, Any], generation: int) -> None:
        self.name = name
        self.generation = generation
        self.phase = Phase.STARTING
        self.came_to_work = False
        self.worn = False  # to be replaced when another one can take its place
        self.hello: ChannelMessage | None = None
        self.flushed = asyncio.Event()
        self.stopped_since: float | None = None  # by a signal
        self.overdue: frozenset[Hold] = frozenset()  # it is killed because of these
        self.killed_because: str | None = None
        self.blameless = False
        self.renewed_at: dict[Hold, float] = {}  # when its leases were asked for
        self.refused: set[Hold] = set()  # renewals that the store refused; the runner itself decides what that means
        self.open_transactions: list[str] = []  # names of transactions that the server keeps open if it dies
        self._late: dict[Hold, float] = {}
        self._condition: dict[str, Any] | None = None
        self._worked = False
        ours, theirs = socket.socketpair()
        board, (read, write) = new_board(), os.pipe()
        stderr = os.dup(2)
        self.board = SupervisorBoard(board)
        self.link = Channel(ours)
        self.link.send_first({**options, "name": name})
        given = (theirs.fileno(), board, stderr)
        self.tail = Tail(read)
        # Python turns a SIGINT during its own start into exit code 1, as a broken app has; the runner unblocks it
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [*command, "--runner", ":".join(map(str, given))],
                stdin=subprocess.DEVNULL,
                stderr=write,
                pass_fds=given,
                process_group=0,  # a Ctrl-C goes to the supervisor alone, and the whole group can be killed
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for descriptor in (board, stderr, write):  # the tail ends with its last writer
                os.close(descriptor)
            theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    async def listen(self, changed: Callable[[], None]) -> None:
        def receive(message: ChannelMessage) -> None:
            if message["type"] == "hello":
                self.hello = message
                if self.phase is Phase.STARTING:
                    self.phase = Phase.READY
                    log.runner_ready(self.name)
            elif message["type"] == "working":
                self._worked = True
            elif message["type"] == "flushed":
                self.flushed.set()
            elif message["type"] == "transactions":
                self.open_transactions = message["names"]
                return
            elif message["type"] == "condition":
                self._condition = message["condition"]
                return
            changed()

        await self.link.listen(receive, changed)

    def send(self, message_type: str) -> None:
        self.link.send({"type": message_type})

    def go(self) -> None:
        self.phase = Phase.WORKING
        self.send("go")

    def leave(self) -> None:
        self.phase = Phase.LEAVING
        self.send("leave")

    def stop(self) -> None:
        """Ask it to stop gracefully. A runner that still imports the app does not read messages yet."""
        if self.phase is Phase.STARTING:
            self.signal(signal.SIGTERM)
        self.phase = Phase.LEAVING
        self.send("stop")

    def signal(self, number: int) -> None:
        if self.process.returncode is None:  # once it is waited for, its number may be another's
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        self.kill_group()
        self.signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """Kill the processes that it started: it is the leader of a process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def exit_code(self) -> int | None:
        """Check whether it has ended, was stopped or goes on. Returns its exit code once it has one."""
        options = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
        while True:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                return self.process.returncode if self.process.returncode is not None else 1
            if not pid:
                return None
            if os.WIFSTOPPED(status):
                self.stopped_since = boottime()
                log.runner_stopped_by_signal(self.name)
            elif os.WIFCONTINUED(status):
                self.stopped_since = None
            else:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return self.process.returncode

    # -- what its status board says ------------------------------------------------------------------
    def stuck(self, now: float) -> list[Seen]:
        """Jobs whose time is over and that do not stop, because the loop could not cancel them or although it did."""
        late = [seen for seen in self.board.seen() if now >= seen.deadline]
        self._late = {seen.hold: self._late.get(seen.hold, now) for seen in late}
        pulse = self.board.pulse
        # a job in a child process does not block the loop, and the child ends itself if nobody kills it
        blocked = {seen.hold for seen in late if pulse < seen.deadline and seen.status == STARTED}
        return [
            seen
            for seen in late
            if now - self._late[seen.hold] >= (BLOCKED_FOR if seen.hold in blocked else CANCELLED_FOR)
        ]

    def forgive(self) -> None:
        """The supervisor did not run for a while, so it does not know how long these jobs were late."""
        self._late.clear()

    def has_lapsed_lease(self, now: float) -> bool:
        """Whether it holds a job whose lease is over."""
        return any(now >= self.asked_at(seen) + seen.lease / 1_000_000 for seen in self.board.seen())

    def asked_at(self, seen: Seen) -> float:
        """When this lease was last requested, as far as the supervisor knows."""
        return max(seen.asked_at, self.renewed_at.get(seen.hold, 0.0))

    @property
    def busy(self) -> bool:
        """Whether it holds anything."""
        return any(True for _ in self.board.seen())

    @property
    def has_worked(self) -> bool:
        """Whether it started to work, by its own message or by its board."""
        return self._worked or self.board.confirmed > 0 or self.busy

    def trouble(self) -> str | None:
        """Why it is not ready, if it is not."""
        if self._condition is None:
            return "it has just begun"
        if boottime() - self.board.pulse > SILENT_FOR:
            return "its event loop is blocked"
        return None if self._condition["ready"] else str(self._condition["why"])

    def beyond_repair(self) -> str | None:
        """Why only a restart of it helps, if its condition says so."""
        if self._condition is None or self._condition["live"]:
            return None
        return str(self._condition["why"])

    def summary(self) -> dict[str, object]:
        """What a probe shows of it."""
        return {"phase": self.phase.name.lower(), "pid": self.pid, "worker": self.name, **(self._condition or {})}

    def memory(self) -> int:
        """Bytes of memory that it occupies; 0 when that is unknown."""
        try:
            if os.path.exists("/proc/self/statm"):
                with open(f"/proc/{self.pid}/statm") as file:
                    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            answer = subprocess.run(
                ["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, timeout=5, check=True
            )
            return int(answer.stdout) * 1024
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return 0
