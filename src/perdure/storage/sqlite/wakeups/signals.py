"""Wake-ups: to the loops of this process directly, to other processes through `datagrams` and from them through
`wakeup_thread`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener

from ..connection.database_file import DatabaseFile
from .datagrams import DatagramSender
from .wakeup_thread import WakeupThread


class Signals:
    """Who listens in this process, and the ways to and from the others."""

    def __init__(self, place: DatabaseFile, ours: Callable[[float], bool]) -> None:
        self._place = place
        self._ours = ours
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._post: DatagramSender | None = None
        self._ear: WakeupThread | None = None

    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Something is committed here. Called by the writer's thread."""
        self._tell_here(ready, changed)
        if not self._place.reaches_others:
            return
        if self._post is None:
            self._post = DatagramSender(self._place.beside())
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
            self._start_listening()
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

    def _start_listening(self) -> None:
        if not self._place.reaches_others:
            return
        if self._ear is None:
            self._ear = WakeupThread(self._place, self._tell_here, self._ours)
        self._ear.listen_for({one.topic for one in self._listeners})

    def _tell_here(self, ready: Collection[str] | None, changed: bool) -> None:
        for listener in self._listeners:
            listener.notify(ready, changed)
