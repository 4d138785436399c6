"""What all event loops of a process share of one file: its threads, its journal and its signals.

The last user closes it. A forked child does not use it: it opens its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import Any

from perdure.errors import StoreError

from ..wakeups.signals import Signals
from .database_file import DatabaseFile
from .driver import DriverName, driver
from .journal_mode import Journal, JournalKeeper, mode_for
from .writer import STILL_WITHIN, Writer

_lock = threading.RLock()
_released: deque[Shared] = deque()  # by finalizers, which run in any thread at any moment and must not wait
_held_for_fork = False
_open: dict[str, Shared] = {}
_inherited: list[Any] = []  # from a parent: never closed, never collected


class Shared:
    """The shared parts of one file."""

    def __init__(self, key: str, file: DatabaseFile, name: DriverName, journal: Journal) -> None:
        self.key = key
        self.file = file
        self.driver = driver(name)
        self.keeper = JournalKeeper(file, self.driver, journal)
        self.signals = Signals(file, self._is_ours)
        self.database = Writer(file, self.driver, self.keeper.connect, self.keeper.check, self.signals.send)
        self.process = os.getpid()
        self.users = 0

    async def close(self) -> None:
        """Wait for the threads, after the last user has released it."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._join)
        except RuntimeError:  # the interpreter is ending and has no executor any more
            self._join()

    def _join(self) -> None:
        self.database.join()
        self.signals.close()

    def _is_ours(self, moment: float) -> bool:
        """Whether this process wrote the file around this moment, which is the date of the file."""
        return self.database.writing or moment - self.database.wrote_at < 0.02


def acquire(key: str, file: DatabaseFile, name: DriverName, journal: Journal) -> Shared:
    """The shared parts of this key; the first caller opens them."""
    with _lock:
        shared = _open.get(key)
        if shared is None:
            shared = _open[key] = Shared(key, file, name, journal)
        elif shared.driver.name != name:
            raise StoreError(
                f"{file} is open in this process through {shared.driver.name}; opening it through {name} too would "
                "break SQLite's locks: use the same URL scheme everywhere"
            )
        elif journal != "as it is" and shared.keeper.wanted == "as it is":
            shared.keeper.wanted = mode_for(journal, shared.driver.version)  # an outbox was here before the store
        shared.users += 1
    _release_waiting()
    return shared


def release_later(shared: Shared) -> None:
    """Release, for a finalizer: at once, or by the thread that uses this module just now."""
    _released.append(shared)
    _release_waiting()


def release(shared: Shared) -> bool:
    """One user less. True: it was the last, and the file is being closed."""
    with _lock:
        shared.users -= 1
        if shared.users > 0 or shared.process != os.getpid():
            return False
        if _open.get(shared.key) is shared:
            del _open[shared.key]
    shared.database.stop()
    return True


def _release_waiting() -> None:
    while _released and _lock.acquire(blocking=False):
        try:
            release(_released.popleft())
        except IndexError:  # another thread was faster
            return
        finally:
            _lock.release()


def key_of(path: str) -> str:
    return os.path.realpath(path)


def _before_fork() -> None:
    global _held_for_fork
    _held_for_fork = _lock.acquire(timeout=STILL_WITHIN)
    for shared in list(_open.values()):
        shared.database.pause_for_fork()


def _after_fork_in_parent() -> None:
    global _held_for_fork
    for shared in list(_open.values()):
        shared.database.resume_after_fork()
    if _held_for_fork:
        _held_for_fork = False
        _lock.release()


def _after_fork() -> None:
    global _lock, _held_for_fork
    _lock = threading.RLock()
    _held_for_fork = False
    for shared in _open.values():
        shared.signals.abandon()
        shared.database.abandon()
        _inherited.append(shared)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
