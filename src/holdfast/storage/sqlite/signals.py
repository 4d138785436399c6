"""Wake-ups: to the loops of this process directly, to other processes through `post` and from them through `ear`."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Collection

from holdfast.storage.contract import Topic

from .ear import Ear
from .place import Place
from .post import Post


class Listener:
    """Calls `wake` in the thread of its loop; a call that has not come through yet is not repeated."""

    def __init__(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> None:
        self.topic = topic
        self._loop: AbstractEventLoop = get_running_loop()
        self._wake = wake
        self._queues = queues
        self._under_way = False
        self.stopped = False

    def tell(self, ready: Collection[str] | None, changed: bool) -> None:
        """`ready` is None when the queues are not known."""
        if self.stopped or self._under_way or not self._concerned(ready, changed):
            return
        self._under_way = True
        try:
            self._loop.call_soon_threadsafe(self._come_through)
        except RuntimeError:  # its loop is closed
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


class Signals:
    """Who listens in this process, and the ways to and from the others."""

    def __init__(self, place: Place, ours: Callable[[float], bool]) -> None:
        self._place = place
        self._ours = ours
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._post: Post | None = None
        self._ear: Ear | None = None

    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Something was committed here. Called by the writer's thread."""
        self._tell_here(ready, changed)
        if self._place.in_memory:
            return
        if self._post is None:
            self._post = Post(self._place.beside())
        own = () if self._ear is None else self._ear.names()
        if ready:
            self._post.send("ready", ready, own)
        if changed:
            self._post.send("changed", (), own)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self._prick_up()
        return lambda: self._stop(listener)

    def close(self) -> None:
        with self._lock:
            self._listeners = ()
            ear, self._ear = self._ear, None
            post, self._post = self._post, None
        if ear is not None:
            ear.close()
        if post is not None:
            post.close()

    def abandon(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if self._ear is not None:
            self._ear.abandon()

    def _stop(self, listener: Listener) -> None:
        listener.stopped = True
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if not one.stopped)
            if self._ear is not None:
                self._ear.listen_for({one.topic for one in self._listeners})

    def _prick_up(self) -> None:
        if self._place.in_memory:
            return
        if self._ear is None:
            self._ear = Ear(self._place, self._tell_here, self._ours)
        self._ear.listen_for({one.topic for one in self._listeners})

    def _tell_here(self, ready: Collection[str] | None, changed: bool) -> None:
        for listener in self._listeners:
            listener.tell(ready, changed)
