"""Fair turns between processes that write to one file.

SQLite lets whoever asks at the right moment have the write lock; a busy claimer can starve a renewal for seconds. So
every write first takes NEXT, then TURN, and drops NEXT: only one waits for TURN, and who has just written queues
behind it. The locks are two files beside the database. They only order; SQLite's own lock protects. Where they
cannot be had, writing goes on without them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]


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
                fcntl.flock(turn, fcntl.LOCK_EX)
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


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
