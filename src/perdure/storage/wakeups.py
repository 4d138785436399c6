"""Who listens in this process: wake-ups for event loops, from whatever thread they come."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Collection

from .contract import Topic


class Listener:
    """Calls `wake` in the thread of its loop; a call that has not come through yet is not repeated."""

    def __init__(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> None:
        self.topic = topic
        self._loop: AbstractEventLoop = get_running_loop()
        self._wake = wake
        self._queues = queues
        self._under_way = False
        self.stopped = False

    def notify(self, ready: Collection[str] | None, changed: bool, *, here: bool = False) -> None:
        """`ready` is None when the queues are not known. `here`: this is the thread of its loop."""
        if self.stopped or self._under_way or not self._concerned(ready, changed):
            return
        if here:
            self._wake()
            return
        self._under_way = True
        try:
            self._loop.call_soon_threadsafe(self._come_through)
        except RuntimeError:  # its loop is closed
            self.stopped = True

    def stop(self) -> None:
        self.stopped = True

    def _concerned(self, ready: Collection[str] | None, changed: bool) -> bool:
        if self.topic == "changed":
            return changed
        if ready is None:
            return True
        return bool(ready) if self._queues is None else not self._queues.isdisjoint(ready)

    def _come_through(self) -> None:
        self._under_way = False
        if not self.stopped:
            self._wake()


class Listeners:
    """All of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        with self._lock:
            self._all = (*(one for one in self._all if not one.stopped), listener)

    def topics(self) -> set[Topic]:
        return {one.topic for one in self._all if not one.stopped}

    def notify(self, ready: Collection[str] | None, changed: bool, *, here: bool = False) -> None:
        """`here`: they all listen in the loop that runs here, and are woken without a detour through it."""
        for listener in self._all:
            listener.notify(ready, changed, here=here)

    def clear(self) -> None:
        with self._lock:
            self._all = ()
