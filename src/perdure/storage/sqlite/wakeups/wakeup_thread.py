"""Hearing what other processes did to the file: their datagrams, and the file's own changes.

Datagrams come from Perdure. A program that commits on a raw connection sends none; for it inotify tells that the
file was written, shortly before the commit can be seen: so we look a little later, and once more. Our own writes and
those of other Perdure processes show up there too; the first are left out, and the watch is armed anew only
after a pause, so that a busy file costs a few wake-ups a second. One thread waits for all of it and costs nothing
while nothing happens.
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

LOOKS = (0.003, 0.025)  # seconds after the file was written
PAUSE, LONG_PAUSE, QUIET = 0.03, 0.2, 0.5
_numbers = itertools.count(1)

Tell = Callable[[Collection[str] | None, bool], None]
_MODIFY, _ONESHOT = 0x2, 0x80000000


class WakeupThread:
    """The sockets, the watch and the thread of one process. `ours`: whether we wrote a file that has this date."""

    def __init__(self, place: DatabaseFile, tell: Tell, ours: Callable[[float], bool]) -> None:
        self._place = place
        self._tell = tell
        self._ours = ours
        self._directory = place.beside()
        self._sockets: dict[str, tuple[str, socket.socket]] = {}
        self._folder: Folder | None = None
        self._poll: select.epoll | None = None
        self._thread: threading.Thread | None = None
        self._stop_read = self._stop_write = -1

    def names(self) -> Collection[str]:
        """Our own sockets."""
        return [name for name, _ in list(self._sockets.values())]

    def listen_for(self, topics: set[str]) -> None:
        """Open and close sockets so that exactly these topics are heard."""
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
        for _, heard in self._sockets.values():
            heard.close()

    def _open_socket(self, topic: str) -> None:
        if self._directory is None or not hasattr(select, "epoll"):
            return
        self._folder = self._folder or Folder(self._directory)
        name = f"{topic}-{os.getpid()}-{next(_numbers)}.socket"
        heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        heard.setblocking(False)
        try:
            heard.bind(self._folder.address(name))
        except OSError:
            heard.close()
            raise
        self._sockets[topic] = (name, heard)
        self._start().register(heard.fileno(), select.EPOLLIN)

    def _close_socket(self, topic: str) -> None:
        name, heard = self._sockets.pop(topic)
        if self._directory is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._directory / name)
        if self._poll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(heard.fileno())
        heard.close()

    def _start(self) -> select.epoll:
        if self._poll is None:
            self._poll = select.epoll()
            self._stop_read, self._stop_write = os.pipe()
            self._poll.register(self._stop_read, select.EPOLLIN)
            self._thread = threading.Thread(target=self._hear, name="perdure-sqlite-ear", daemon=True)
            self._thread.start()
        return self._poll

    # -- the thread ----------------------------------------------------------------------------------
    def _hear(self) -> None:
        assert self._poll is not None
        watch = Watch(self._place)
        if watch.file >= 0:
            self._poll.register(watch.file, select.EPOLLIN)
        looks = _Looks(watch)
        while True:
            events = self._poll.poll(looks.wait())
            files = {file for file, _ in events}
            if self._stop_read in files:
                break
            if watch.file in files:
                looks.written()
            self._receive(files)
            if (moment := looks.due()) is not None and not self._ours(moment):
                self._tell(None, True)
        watch.close()
        self._poll.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _receive(self, files: set[int]) -> None:
        for topic, (_, heard) in list(self._sockets.items()):
            if heard.fileno() not in files:
                continue
            queues: set[str] | None = set()
            with contextlib.suppress(OSError):
                while True:
                    message = heard.recv(65536).decode("utf-8", "replace")
                    queues = None if not message or queues is None else queues | set(message.split("\n"))
            if topic == "changed":
                self._tell((), True)
            else:
                self._tell(queues, False)


class _Looks:
    """When to look at a file after it was written, and when to arm the watch again."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._due: list[float] = []
        self._arm_at: float | None = 0.0
        self._written_at = -QUIET
        self._seen = watch.state()

    def wait(self) -> float:
        """Seconds until something is to be done, -1 for never."""
        times = [*self._due, *(() if self._arm_at is None else (self._arm_at,))]
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def written(self) -> None:
        self._watch.drain()
        self._note(time.monotonic())

    def due(self) -> float | None:
        """The date of the file, if it was written and is to be looked at now. This thread may hear of a write long after it:
        only the file itself knows when that was."""
        now = time.monotonic()
        if self._arm_at is not None and self._arm_at <= now:
            self._arm(now)
        late = [look for look in self._due if look <= now]
        self._due = [look for look in self._due if look > now]
        if not late:
            return None
        self._seen = self._watch.state()
        return self._watch.date()

    def _note(self, now: float) -> None:
        busy = now - self._written_at < QUIET
        self._written_at = now
        self._due = [now + after for after in LOOKS]
        self._arm_at = now + (LONG_PAUSE if busy else PAUSE)

    def _arm(self, now: float) -> None:
        self._arm_at = None
        if not self._watch.arm():
            return
        if self._watch.state() != self._seen:  # written while nobody watched
            self._note(now)


class Watch:
    """Uses inotify (Linux) to learn once that the database or its write-ahead log was written. `file` is -1 where there is
    no inotify."""

    def __init__(self, place: DatabaseFile) -> None:
        self._paths = [os.fsencode(f"{place}{suffix}") for suffix in ("", "-wal")]
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
        """Tell once about the next write."""
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
        """Changes when a file is written; only a look, the files are never opened."""
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
