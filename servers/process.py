"""Run a server process in a temporary folder on a free port of the loopback interface.

A `Program` describes a kind of server: its command, how to create its data, and when it is ready. A `Process` is a running
one. It has its own folder and stops with its last user; see keeper.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

START, STOP = 60.0, 30.0
PORTS = 5  # tried when another program is quicker
TRIED = 50  # numbers of ports that may be taken
PRIVILEGED, USUAL_FIRST = 1024, 32768


class NotAvailable(Exception):
    """This kind of server is not available here; the text says why."""


class NotAnswering(Exception):
    """The server started but does not answer; the text has the end of its log."""


class Program(Protocol):
    """A kind of server. `stop` is the signal for a clean shutdown."""

    stop: signal.Signals

    def prepare(self, folder: Path) -> None:
        """Create its data, if it needs that before the first start."""

    def command(self, folder: Path, port: int, settings: Mapping[str, str]) -> list[str]: ...

    def answers(self, port: int) -> bool:
        """Whether it is ready now. Called until it is."""


class Process:
    """A server that runs or can run again: its folder, its port, and the pipe that keeps it alive."""

    def __init__(self, program: Program, folder: Path, port: int = 0, pid: int = 0) -> None:
        self._program = program
        self._users = os.open(folder / "users", os.O_RDWR)
        self.folder = folder
        self.port = port
        self.pid = pid

    def run(self, port: int, settings: Mapping[str, str]) -> None:
        """Start it and wait until it answers."""
        for name in ("pid", "ended"):
            (self.folder / name).unlink(missing_ok=True)
        self.port = port
        os.write(self._users, json.dumps(self._program.command(self.folder, port, settings)).encode() + b"\n")
        deadline = time.monotonic() + START
        while not self._ready():
            if self._ended() or time.monotonic() > deadline:
                raise NotAnswering(f"no answer on port {port}:\n{self.log()[-2000:]}")
            time.sleep(0.01)
        self.pid = int((self.folder / "pid").read_text())

    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def halt(self) -> None:
        """Shut it down cleanly. It can run again."""
        if not self._ended():
            os.kill(self.pid, self._program.stop)
        self._wait_for(self._ended, "it did not end when asked to")

    def kill(self) -> None:
        """Kill it and all its children with SIGKILL, as a crash of the operating system would."""
        if self._ended():
            return
        os.kill(self.pid, signal.SIGSTOP)  # so that it starts no child while they are listed
        for pid in (*_children(self.pid), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_for(self._ended, "it outlived a kill")

    def freeze(self) -> None:
        """Stop it and all its children: connections stay open without answers."""
        os.kill(self.pid, signal.SIGSTOP)
        for pid in _children(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        for pid in (*_children(self.pid), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self, *, wait: bool = True) -> None:
        """Release the server. The last user stops it and removes its folder."""
        if self._users < 0:
            return
        os.close(self._users)
        self._users = -1
        if wait:
            self._wait_for(lambda: not self.folder.exists(), "its folder is still there")

    def _ready(self) -> bool:
        return (self.folder / "pid").exists() and not self._ended() and self._program.answers(self.port)

    def _ended(self) -> bool:
        return (self.folder / "ended").exists()

    def _wait_for(self, done: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + STOP
        while not done():
            if time.monotonic() > deadline:
                raise NotAnswering(f"server in {self.folder}: {complaint}")
            time.sleep(0.005)


def launch(program: Program, settings: Mapping[str, str], folder: Path, lock: Path | None = None) -> Process:
    """Start a new server with its own data. If another program takes the free port first, try another port."""
    process = _start_keeper(program, folder, lock or folder / "lock")
    try:
        program.prepare(folder)
        for remaining in reversed(range(PORTS)):
            try:
                process.run(_free_port(), settings)
            except NotAnswering:
                if not remaining or "in use" not in process.log():
                    raise
            else:
                break
    except BaseException:
        process.close(wait=lock is None)  # under a lock, its keeper waits for this process
        raise
    return process


def join(program: Program, folder: Path) -> Process:
    """Join a server that another process has started. The caller holds the lock."""
    state = json.loads((folder / "state").read_text())
    return Process(program, folder, state["port"], state["pid"])


def announce(process: Process) -> None:
    """Write the state file, so that other processes can join."""
    (process.folder / "state").write_text(json.dumps({"port": process.port, "pid": process.pid}))


def _start_keeper(program: Program, folder: Path, lock: Path) -> Process:
    os.mkfifo(folder / "users")
    process = Process(program, folder)
    keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))]
    order = [*keeper, str(folder), str(lock), str(int(program.stop))]
    with (folder / "log").open("ab") as log:
        subprocess.run(order, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return process


def _free_port() -> int:
    """A port below those that the system gives to outgoing connections: nobody takes it while the server is down, so that
    the server can start again on it."""
    end = _first_of_outgoing()
    for _ in range(TRIED):
        port = random.randrange(end // 2, end)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_of_outgoing() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return USUAL_FIRST
    return first if first > 2 * PRIVILEGED else USUAL_FIRST


def _children(pid: int) -> list[int]:
    processes = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = (line.split() for line in processes.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]
