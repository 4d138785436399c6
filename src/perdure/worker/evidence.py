"""What is left of a process that died: how it ended, and the last lines it wrote."""

from __future__ import annotations

import os
import signal
import threading

from ..job import Fault

LOST = "WorkerLost"
KEPT = 8_000  # characters of the last lines
READ = 131_072  # bytes that these are taken from: a dump of many threads is long
LINES = 40
FRAMES = 6  # of each thread, the innermost


class Tail:
    """Passes on what a process writes to its stderr, and keeps the end of it.

    In a thread: when nobody takes our own stderr, only the one who writes is held up."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last = b""
        self._thread = threading.Thread(target=self._run, name="perdure stderr", daemon=True)
        self._thread.start()

    def lines(self, wait: float = 0.2) -> str:
        """The last lines. Waits a moment for what a process that has just died had written."""
        self._thread.join(wait)
        return digest(self._last.decode("utf-8", "backslashreplace"))

    def _run(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(65_536):
                self._last = (self._last + data)[-READ:]
                try:
                    os.write(2, data)
                except OSError:  # nobody listens to us any more
                    continue


def digest(text: str) -> str:
    """The last lines of a text. Of a dump of threads, which is long: what came before, and the innermost frames of each."""
    lines = text.splitlines()
    dump = _last_dump(lines)
    if dump is None:
        return "\n".join(lines[-LINES:])[-KEPT:]
    shown, frames = lines[max(0, dump - LINES // 2) : dump], 0
    for line in lines[dump:]:
        frames = frames + 1 if line.startswith("  File ") else 0
        if line and frames <= FRAMES:
            shown.append(line)
    return "\n".join(shown)[:KEPT]


def _last_dump(lines: list[str]) -> int | None:
    """Where the dump begins that these lines end with, or nearly so. One of long before says nothing about the end."""
    end = len(lines)
    while end and not _of_dump(lines[end - 1]):
        end -= 1
    begin = end
    while begin and (_of_dump(lines[begin - 1]) or not lines[begin - 1]):
        begin -= 1
    dumped = any(_opens_dump(line) for line in lines[begin:end])
    return begin if dumped and len(lines) - end < LINES else None


def _of_dump(line: str) -> bool:
    return _opens_dump(line) or line.startswith("  File ")


def _opens_dump(line: str) -> bool:
    return line.startswith(("Fatal Python error:", "Current thread 0x", "Thread 0x"))


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
    """The evidence as it is kept on the job."""
    trace = f"last lines of its stderr:\n{lines}" if lines else None
    return Fault(attempt, worker, started_at or ended_at, ended_at, kind, message, trace)
