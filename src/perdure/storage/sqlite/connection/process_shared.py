"""What all event loops of a process share of one file: the database, its journal and its signals.

Counted by users, closed by the last. A forked child inherits nothing of it: it opens its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from perdure.errors import StoreError

from ..wakeups.signals import Signals
from .database_file import DatabaseFile
from .driver import DriverName, driver
from .journal_mode import Journal, Keeper, mode_for
from .writer import STILL_WITHIN, Writer

_lock = threading.RLock()
_leaving: deque[Shared] = deque()  # given back by finalizers, which run in any thread at any moment and must not wait
_held_for_fork = False
_open: dict[str, Shared] = {}
_inherited: list[Any] = []  # of a parent: never closed, never collected


class Shared:
    def __init__(self, key: str, place: DatabaseFile, name: DriverName, journal: Journal) -> None:
        self.key = key
        self.place = place
        self.driver = driver(name)
        self.keeper = Keeper(place, self.driver, journal)
        self.signals = Signals(place, self._ours)
        self.database = Writer(place, self.driver, self.keeper.connect, self.keeper.check, self.signals.tell)
        self.process = os.getpid()
        self.users = 0

    def end(self) -> None:
        """Wait for the threads; blocks."""
        self.database.join()
        self.signals.close()

    def _ours(self, moment: float) -> bool:
        """Whether we ourselves wrote the file around this moment, which is its own date."""
        return self.database.writing or moment - self.database.wrote_at < 0.02


def take(key: str, place: DatabaseFile, name: DriverName, journal: Journal) -> Shared:
    """The shared database of this key, opened by the first who asks."""
    with _lock:
        shared = _open.get(key)
        if shared is None:
            shared = _open[key] = Shared(key, place, name, journal)
        elif shared.driver.name != name:
            raise StoreError(
                f"{place} is open in this process through {shared.driver.name}; opening it through {name} too would "
                "break SQLite's locks: use the same URL scheme everywhere"
            )
        elif journal != "as it is" and shared.keeper.wanted == "as it is":
            shared.keeper.wanted = mode_for(journal, shared.driver.version)  # an outbox was here before the store
        shared.users += 1
    _see_off()
    return shared


def leave(shared: Shared) -> None:
    """Give back, for a finalizer: at once if nobody is at it, else whoever is sees to it."""
    _leaving.append(shared)
    _see_off()


def give_back(shared: Shared) -> bool:
    """One user less. True: it was the last, and the database is being closed."""
    with _lock:
        shared.users -= 1
        if shared.users > 0 or shared.process != os.getpid():
            return False
        if _open.get(shared.key) is shared:
            del _open[shared.key]
    shared.database.stop()
    return True


def _see_off() -> None:
    while _leaving and _lock.acquire(blocking=False):
        try:
            give_back(_leaving.popleft())
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
        shared.database.hold_still()


def _after_fork_in_parent() -> None:
    global _held_for_fork
    for shared in list(_open.values()):
        shared.database.go_on()
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
