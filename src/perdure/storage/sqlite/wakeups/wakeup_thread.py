"""Receives wake-ups from other processes: their datagrams, and changes of the file itself.

Perdure sends datagrams. A program that commits on a raw connection sends none; for it inotify reports that the file was
written, shortly before the commit can be read. So the thread waits a little before it notifies, and notifies twice. It
leaves out writes of this process. It arms the watch again only after a pause, so that a busy file costs few wake-ups.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from ..connection.database_file import DatabaseFile
from .datagrams import Folder

DELAYS = (0.003, 0.025)  # seconds after the file was written
PAUSE, LONG_PAUSE, QUIET = 0.03, 0.2, 0.5
_numbers = itertools.count(1)

Notify = Callable[[Collection[str] | None, bool], None]
_MODIFY, _ONESHOT = 0x2, 0x80000000


class WakeupThread:
    """The sockets, the watch and the thread of one process. `is_ours`: whether this process wrote a file with this date."""

    def __init__(self, file: DatabaseFile, notify: Notify, is_ours: Callable[[float], bool]) -> None:
        self._file = file
        self._notify = notify
        self._is_ours = is_ours
        self._directory = file.beside()
        self._sockets: dict[str, tuple[str, socket.socket]] = {}
        self._folder: Folder | None = None
        self._poll: select.epoll | None = None
        self._thread: threading.Thread | None = None
        self._stop_read = self._stop_write = -1

    def names(self) -> Collection[str]:
        """Our own sockets."""
        return [name for name, _ in list(self._sockets.values())]

    def listen_for(self, topics: set[str]) -> None:
        """Open and close sockets so that exactly these topics are received."""
        for topic in [topic for topic in self._sockets if topic not in topics]:
            self._close_socket(topic)
        with contextlib.suppress(OSError):
            for topic in topics - self._sockets.keys():
                self._open_socket(topic)

    def close(self) -> None:
        if self._thread is not None:
            os.write(self._stop_write, b"x")
            if self._thread is not threading.current_thread():
                self._thread.join()
        for topic in list(self._sockets):
            self._close_socket(topic)
        if self._folder is not None:
            self._folder.close()

    def abandon(self) -> None:
        for _, receiver in self._sockets.values():
            receiver.close()

    def _open_socket(self, topic: str) -> None:
        if self._directory is None or not hasattr(select, "epoll"):
            return
        self._folder = self._folder or Folder(self._directory)
        name = f"{topic}-{os.getpid()}-{next(_numbers)}.socket"
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        try:
            receiver.bind(self._folder.address(name))
        except OSError:
            receiver.close()
            raise
        self._sockets[topic] = (name, receiver)
        self._start().register(receiver.fileno(), select.EPOLLIN)

    def _close_socket(self, topic: str) -> None:
        name, receiver = self._sockets.pop(topic)
        if self._directory is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._directory / name)
        if self._poll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(receiver.fileno())
        receiver.close()

    def _start(self) -> select.epoll:
        if self._poll is None:
            self._poll = select.epoll()
            self._stop_read, self._stop_write = os.pipe()
            self._poll.register(self._stop_read, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name="perdure-sqlite-signals", daemon=True)
            self._thread.start()
        return self._poll

    # -- the thread ----------------------------------------------------------------------------------
    def _run(self) -> None:
        assert self._poll is not None
        watch = Watch(self._file)
        if watch.file >= 0:
            self._poll.register(watch.file, select.EPOLLIN)
        delays = _Delays(watch)
        while True:
            events = self._poll.poll(delays.wait())
            files = {file for file, _ in events}
            if self._stop_read in files:
                break
            if watch.file in files:
                delays.note_write()
            self._receive(files)
            if (moment := delays.due()) is not None and not self._is_ours(moment):
                self._notify(None, True)
        watch.close()
        self._poll.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _receive(self, files: set[int]) -> None:
        for topic, (_, receiver) in list(self._sockets.items()):
            if receiver.fileno() not in files:
                continue
            queues: set[str] | None = set()
            with contextlib.suppress(OSError):
                while True:
                    message = receiver.recv(65536).decode("utf-8", "replace")
                    queues = None if not message or queues is None else queues | set(message.split("\n"))
            if topic == "changed":
                self._notify((), True)
            else:
                self._notify(queues, False)


class _Delays:
    """When to notify after a file was written, and when to arm the watch again."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._due: list[float] = []
        self._arm_at: float | None = 0.0
        self._written_at = -QUIET
        self._seen = watch.state()

    def wait(self) -> float:
        """Seconds until something is due, -1 for never."""
        times = [*self._due, *(() if self._arm_at is None else (self._arm_at,))]
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def note_write(self) -> None:
        self._watch.drain()
        self._note(time.monotonic())

    def due(self) -> float | None:
        """The date of the file, if it was written and a notification is due. This thread may learn of a write long after it:
        only the file itself knows when that was."""
        now = time.monotonic()
        if self._arm_at is not None and self._arm_at <= now:
            self._arm(now)
        late = [due for due in self._due if due <= now]
        self._due = [due for due in self._due if due > now]
        if not late:
            return None
        self._seen = self._watch.state()
        return self._watch.date()

    def _note(self, now: float) -> None:
        busy = now - self._written_at < QUIET
        self._written_at = now
        self._due = [now + after for after in DELAYS]
        self._arm_at = now + (LONG_PAUSE if busy else PAUSE)

    def _arm(self, now: float) -> None:
        self._arm_at = None
        if not self._watch.arm():
            return
        if self._watch.state() != self._seen:  # written while the watch was not armed
            self._note(now)


class Watch:
    """Uses inotify (Linux) to learn once that the database or its write-ahead log was written. `file` is -1 where there is
    no inotify."""

    def __init__(self, file: DatabaseFile) -> None:
        self._paths = [os.fsencode(f"{file}{suffix}") for suffix in ("", "-wal")]
        self._library: Any = None
        self.file = -1
        import ctypes  # only processes that listen need it

        self._events = ctypes.c_uint32(_MODIFY | _ONESHOT)
        try:
            self._library = ctypes.CDLL(None, use_errno=True)
            self.file = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            pass

    def arm(self) -> bool:
        """Report the next write, once."""
        if self.file < 0:
            return False
        for path in self._paths:
            self._library.inotify_add_watch(self.file, path, self._events)
        return True

    def drain(self) -> None:
        try:
            while os.read(self.file, 4096):
                pass
        except OSError:
            pass

    def state(self) -> tuple[int, ...]:
        """Changes when a file is written. The files are never opened."""
        return tuple(moment for path in self._paths for moment in _times(path))

    def date(self) -> float:
        """When a file was last written, in seconds."""
        return max((times[0] for path in self._paths if (times := _times(path))), default=0) / 1e9

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)


def _times(path: bytes) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size
