"""Processes that tests may kill. One process imports everything once and forks a child for each order, so that a
hundred children cost what a hundred forks cost. It never opens a store itself.

Orders and answers are JSON lines on its standard streams. It ends, and its children with it, when the test's end of the
pipe is closed, even if the test itself was killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import perdure
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PACKAGES = Path(perdure.__file__).parents[1]
KILLED = -signal.SIGKILL
PATIENCE = 25  # seconds after which a child says where it is: a test that waits in vain for it tells that


class Nursery:
    """The test's side."""

    def __init__(self, module: str) -> None:
        paths = [str(ROOT), str(PACKAGES), os.environ.get("PYTHONPATH", "")]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.system.crashes.nursery", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, role: str, output: Path, **arguments: Any) -> Child:
        """A child that plays a role; what it prints goes to the file `output`."""
        pid = self.ask({"start": role, "arguments": arguments, "output": str(output)})
        return Child(self, pid, role, output)

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def clear(self) -> None:
        """Kill what is left of the children."""
        self.ask({"clear": True})

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()


class Child:
    """A process of a role."""

    def __init__(self, nursery: Nursery, pid: int, role: str, output: Path) -> None:
        self._nursery = nursery
        self._code: int | None = None
        self.pid = pid
        self.role = role
        self.output = output

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        if self._code is None:
            self._code = self._nursery.ask({"poll": self.pid})
        return self._code

    def send(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM as soon as the process has a handler for it: one that was just started would die of it."""
        wait_until(lambda: self.code is not None or _handles(self.pid, signal.SIGTERM))
        self.send(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it, and wait until it stands still: a signal takes its time."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: self.code is not None or _state(self.pid) == "T")

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 60.0) -> int:
        wait_until(
            lambda: self.code is not None, timeout, lambda: f"{self.role} goes on after {timeout} s:\n{self.said()}"
        )
        assert self._code is not None
        return self._code

    def finish(self, timeout: float = 60.0) -> None:
        """Wait for it, and accept nothing but a good end."""
        assert self.wait(timeout) == 0, f"{self.role} ended with {self._code}:\n{self.said()}"

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    (caught,) = [line for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


# ---- the other side --------------------------------------------------------------------------------
def serve(module: str) -> None:
    import importlib

    roles = importlib.import_module(module).ROLES
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            pid = _born(roles[order["start"]], order)
            children.add(pid)
            answer: int | None = pid
        elif "poll" in order:
            answer = _code_of(order["poll"], children)
        else:
            _kill_all(children)
            answer = 0
        print(json.dumps(answer), flush=True)
    _kill_all(children)


def _born(role: Any, order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the nursery
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, file in enumerate((nothing, output, output)):
            os.dup2(file, stream)
        faulthandler.dump_traceback_later(PATIENCE)
        role(**order["arguments"])
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(pid: int, children: set[int]) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _kill_all(children: set[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    children.clear()


if __name__ == "__main__":
    serve(sys.argv[1])
