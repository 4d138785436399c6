"""Fair turns between processes that write to one file.

SQLite lets whoever asks at the right moment have the write lock; a busy claimer can starve a renewal for seconds. So
every write first takes NEXT, then TURN, and drops NEXT: only one waits for TURN, and who has just written queues
behind it. The locks are two files beside the database. They only order; SQLite's own lock protects. Where they
cannot be had, writing goes on without them.

A lock that is free is taken without letting go of the interpreter. Otherwise a busy loop beside the writer would get it at
each of the four calls, and keep it for as long as a thread may. Only who really has to wait lets go of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
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
            _take(next_)
            try:
                _take(turn)
            finally:
                _drop(next_)
        except OSError:
            self.close()  # a file system without such locks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._files is not None:
            with contextlib.suppress(OSError):
                _drop(self._files[1])

    def close(self) -> None:
        """Closing drops the locks, unless another process still shares the files after a fork."""
        files, self._files = self._files, None
        for file in files or ():
            with contextlib.suppress(OSError):
                os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _take(file: int) -> None:
    if _at_once()(file, fcntl.LOCK_EX | fcntl.LOCK_NB) != 0:
        fcntl.flock(file, fcntl.LOCK_EX)


def _drop(file: int) -> None:
    if _at_once()(file, fcntl.LOCK_UN) != 0:
        fcntl.flock(file, fcntl.LOCK_UN)


@cache
def _at_once() -> Callable[[int, int], int]:
    """A flock that keeps the interpreter, for calls that do not wait. It gives 0 when it has done what was asked."""
    try:
        import ctypes

        flock = ctypes.PyDLL(None).flock
        flock.argtypes = [ctypes.c_int, ctypes.c_int]
    except (ImportError, OSError, AttributeError):
        return lambda file, operation: -1
    return flock
