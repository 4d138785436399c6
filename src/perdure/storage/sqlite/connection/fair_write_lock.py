"""Orders the writes of several processes to one file fairly.

SQLite gives its write lock to whichever process asks at the right moment; a busy claimer can starve a renewal for seconds.
So every write first takes NEXT, then TURN, and drops NEXT: only one process waits for TURN, and one that has just written
queues behind it. The locks are two files beside the database. They only decide the order; SQLite's own lock protects the
file. Where they are not possible, writes do without them.

A stopped process (SIGSTOP, a debugger) keeps its lock for as long as it is stopped. So no write waits for its turn longer
than WITHIN: it goes on without it. No system call waits for a file lock with a time limit, so a thread of its own waits
(`LockWaiter`). While that thread is stuck, further writes do not wait at all.

A free lock is taken without releasing the interpreter's lock. Otherwise a busy event loop would get that at each of the four
calls, and keep it for as long as a thread may. Only a write that has to wait releases it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]

WITHIN = 3.0  # seconds


class FairWriteLock:
    """Use as a context manager around each write, by one thread."""

    def __init__(self, directory: Path | None) -> None:
        self._files: tuple[int, int] | None = None
        self._waiter: LockWaiter | None = None
        self._has_turn = False
        if directory is not None and fcntl is not None:
            with contextlib.suppress(OSError):
                self._files = (_open(directory / "next"), _open(directory / "turn"))

    def __enter__(self) -> None:
        if self._files is None or (self._waiter is not None and self._waiter.is_stuck):
            return
        next_, turn = self._files
        try:
            if self._take(next_):
                try:
                    self._has_turn = self._take(turn)
                finally:
                    _drop(next_)
        except OSError:
            self.close()  # a file system without such locks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._files is not None and self._has_turn:
            self._has_turn = False
            with contextlib.suppress(OSError):
                _drop(self._files[1])

    def close(self) -> None:
        """Closing drops the locks, unless another process still shares the files after a fork."""
        files, self._files, self._has_turn = self._files, None, False
        for file in files or ():
            with contextlib.suppress(OSError):
                os.close(file)

    def _take(self, file: int) -> bool:
        """Take a lock; False when it is not to be had in time."""
        if _at_once()(file, fcntl.LOCK_EX | fcntl.LOCK_NB) == 0:
            return True
        if self._waiter is None:
            self._waiter = LockWaiter()
        return self._waiter.take(file, WITHIN)


class LockWaiter:
    """Waits for file locks in a thread of its own, one at a time."""

    def __init__(self) -> None:
        self.is_stuck = False  # the thread waits for a lock that no write needs any more
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="perdure turns", daemon=True).start()

    def take(self, file: int, within: float) -> bool:
        """Take a lock within so many seconds. OSError where the file system has no such locks."""
        request = _Request(os.dup(file))  # the file may be closed while the thread waits
        self._requests.put(request)
        request.over.wait(within)
        with self._lock:
            if not request.over.is_set():
                self.is_stuck = request.unwanted = True
                return False
        if request.error is not None:
            raise request.error
        return True

    def _run(self) -> None:
        while True:
            self._serve(self._requests.get())

    def _serve(self, request: _Request) -> None:
        try:
            fcntl.flock(request.file, fcntl.LOCK_EX)
        except OSError as error:
            request.error = error
        with self._lock:
            if request.unwanted:
                self.is_stuck = False
                with contextlib.suppress(OSError):
                    fcntl.flock(request.file, fcntl.LOCK_UN)
            os.close(request.file)  # the lock stays with the file that it was made from
            request.over.set()


class _Request:
    """A request for a lock."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.over = threading.Event()
        self.error: OSError | None = None
        self.unwanted = False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _drop(file: int) -> None:
    if _at_once()(file, fcntl.LOCK_UN) != 0:
        fcntl.flock(file, fcntl.LOCK_UN)


@cache
def _at_once() -> Callable[[int, int], int]:
    """A flock that keeps the interpreter, for calls that do not wait. It returns 0 if it has succeeded."""
    try:
        import ctypes

        flock = ctypes.PyDLL(None).flock
        flock.argtypes = [ctypes.c_int, ctypes.c_int]
    except (ImportError, OSError, AttributeError):
        return lambda file, operation: -1
    return flock
