"""Sends and receives wake-ups: within this process directly, to other processes by datagrams, from them by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener

from ..connection.database_file import DatabaseFile
from .datagrams import DatagramSender
from .wakeup_thread import WakeupThread


class Signals:
    """The listeners of this process, and the sender and receiver for other processes."""

    def __init__(self, file: DatabaseFile, is_ours: Callable[[float], bool]) -> None:
        self._file = file
        self._is_ours = is_ours
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._sender: DatagramSender | None = None
        self._receiver: WakeupThread | None = None

    def send(self, ready: Collection[str], changed: bool) -> None:
        """Wake up the listeners of this process and of others. Only the writer's thread calls this."""
        self._notify_here(ready, changed)
        if not self._file.reaches_others:
            return
        if self._sender is None:
            self._sender = DatagramSender(self._file.beside())
        own = () if self._receiver is None else self._receiver.names()
        if ready:
            self._sender.send("ready", ready, own)
        if changed:
            self._sender.send("changed", (), own)

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
            receiver, self._receiver = self._receiver, None
            sender, self._sender = self._sender, None
        if receiver is not None:
            receiver.close()
        if sender is not None:
            sender.close()

    def abandon(self) -> None:
        """In a forked child: the sockets are the parent's."""
        if self._receiver is not None:
            self._receiver.abandon()

    def _stop(self, listener: Listener) -> None:
        listener.stopped = True
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if not one.stopped)
            if self._receiver is not None:
                self._receiver.listen_for({one.topic for one in self._listeners})

    def _start_listening(self) -> None:
        if not self._file.reaches_others:
            return
        if self._receiver is None:
            self._receiver = WakeupThread(self._file, self._notify_here, self._is_ours)
        self._receiver.listen_for({one.topic for one in self._listeners})

    def _notify_here(self, ready: Collection[str] | None, changed: bool) -> None:
        for listener in self._listeners:
            listener.notify(ready, changed)
