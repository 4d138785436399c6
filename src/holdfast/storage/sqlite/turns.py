"""Fair turns between processes that write to one file.

SQLite lets whoever asks at the right moment have the write lock; a busy claimer can starve a renewal for seconds. So
every write first takes NEXT, then TURN, and drops NEXT: only one waits for TURN, and who has just written queues
behind it. The locks are two files beside the database. They only order; SQLite's own lock protects. Where they
cannot be had, writing goes on without them. So it does when somebody keeps his turn for longer than any write takes: he
may be stopped (Ctrl-Z, a debugger). If he holds SQLite's lock as well, that is told as a file that stays busy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]


PATIENCE = 10.0  # seconds; a handler's transaction may keep its turn for five
PAUSE = 0.0001
_log = logging.getLogger("holdfast")


class Turns:
    """Use as a context manager around each write, by one thread."""

    def __init__(self, directory: Path | None) -> None:
        self._files: tuple[int, int] | None = None
        if directory is not None and fcntl is not None:
            with contextlib.suppress(OSError):
                self._files = (_opened(directory / "next"), _opened(directory / "turn"))

    def __enter__(self) -> None:
        if self._files is None:
            return
        next_, turn = self._files
        try:
            fcntl.flock(next_, fcntl.LOCK_EX)
            try:
                _take(turn)
            finally:
                fcntl.flock(next_, fcntl.LOCK_UN)
        except OSError:
            self.close()  # a file system without such locks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._files is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def close(self) -> None:
        """Closing drops the locks, unless another process still shares the files after a fork."""
        files, self._files = self._files, None
        for file in files or ():
            with contextlib.suppress(OSError):
                os.close(file)


def _take(turn: int) -> None:
    """Wait for the turn. Asked for again and again, because a lock that is waited for cannot be given up; there is never
    more than one who does."""
    deadline = 0.0
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            deadline = deadline or time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                _log.warning(
                    "another process has kept its turn to write for %g s and may be stopped: going on", PATIENCE
                )
                return
        time.sleep(PAUSE)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
