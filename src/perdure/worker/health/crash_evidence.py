"""The evidence of a process that died: how it ended, and the last lines that it wrote."""

from __future__ import annotations

import os
import signal
import threading

from ...core.record import Fault
from .crash_dump import DumpFilter, belongs_to_dump, opens_dump, shorten

LOST = "WorkerLost"
KEPT = 8_000  # characters of the last lines
READ = 131_072  # bytes that these are taken from: a dump of many threads is long
LINES = 40


class Tail:
    """Passes on what a process writes to its stderr, crash dumps shortened, and keeps the end of it.

    It runs in a thread, so that a full stderr of this process blocks only the process that writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last = b""
        self._filter = DumpFilter()
        self._thread = threading.Thread(target=self._run, name="perdure stderr", daemon=True)
        self._thread.start()

    def lines(self, wait: float = 0.2) -> str:
        """The last lines. Waits a moment for what a process that has just died had written."""
        self._thread.join(wait)
        return digest(self._last.decode("utf-8", "backslashreplace"))

    def expect_dump(self) -> None:
        """The process is about to be asked for the stacks of its threads."""
        self._filter.expects_dump = True

    def _run(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(65_536):
                self._last = (self._last + data)[-READ:]
                _pass_on(self._filter.feed(data))
        _pass_on(self._filter.end())


def _pass_on(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nobody reads the stderr of this process any more
        pass


def digest(text: str) -> str:
    """The last lines of a text. A dump of threads is long: keep what came before, and the lines of the user's code."""
    lines = text.splitlines()
    dump = _last_dump(lines)
    if dump is None:
        return "\n".join(lines[-LINES:])[-KEPT:]
    return "\n".join([*lines[max(0, dump - LINES // 2) : dump], *shorten(lines[dump:])])[:KEPT]


def _last_dump(lines: list[str]) -> int | None:
    """Where the dump begins with which these lines end, or nearly so. An older dump says nothing about the end."""
    end = len(lines)
    while end and not belongs_to_dump(lines[end - 1]):
        end -= 1
    begin = end
    while begin and (belongs_to_dump(lines[begin - 1]) or not lines[begin - 1]):
        begin -= 1
    dumped = any(opens_dump(line) for line in lines[begin:end])
    return begin if dumped and len(lines) - end < LINES else None


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory, or kill -9)" if -code == signal.SIGKILL else "")


def fault(
    attempt: int, worker: str, started_at: int, ended_at: int, message: str, lines: str, kind: str = LOST
) -> Fault:
    """The evidence as the job stores it."""
    trace = f"last lines of its stderr:\n{lines}" if lines else None
    return Fault(attempt, worker, started_at or ended_at, ended_at, kind, message, trace)
