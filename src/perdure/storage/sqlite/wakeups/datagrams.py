"""Sends datagrams to the listeners of other processes.

Each listening process has a unix datagram socket per topic in the directory beside the database; its name begins with
the topic. A sender reads the directory when it has changed, and removes sockets whose process is gone. Sending never waits
and never fails: a signal may be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Collection
from pathlib import Path

LARGEST = 8_000  # bytes of queue names in a datagram; an empty one means any queue
FRESH = 20_000_000  # nanoseconds within which two changes of a directory may look like one


class DatagramSender:
    """Sends to the sockets of a directory. Used by one thread."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._socket: socket.socket | None = None
        self._names: list[str] = []
        self._read_at = -1
        if directory is not None and hasattr(socket, "AF_UNIX"):
            with contextlib.suppress(OSError):
                self._folder = Folder(directory)
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)

    def send(self, topic: str, queues: Collection[str], own: Collection[str]) -> None:
        """Wake up the listeners of the topic in other processes."""
        if self._socket is None or self._directory is None:
            return
        try:
            self._read_directory()
        except OSError:
            return
        message = "\n".join(queues).encode()
        if len(message) > LARGEST:
            message = b""
        for name in self._names:
            if name.startswith(topic) and name not in own:
                self._send(self._socket, message, name)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._folder.close()
            self._socket = None

    def _read_directory(self) -> None:
        changed = os.stat(self._directory or ".").st_mtime_ns
        if changed != self._read_at:
            self._names = [name for name in os.listdir(self._directory) if name.endswith(".socket")]
            # a change in the same tick of the clock would be missed: then read again next time
            self._read_at = changed if abs(time.time_ns() - changed) > FRESH else -1

    def _send(self, sender: socket.socket, message: bytes, name: str) -> None:
        try:
            sender.sendto(message, self._folder.address(name))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:  # its process is gone
                with contextlib.suppress(OSError):
                    os.unlink(self._directory / name)  # type: ignore[operator]


class Folder:
    """A directory of sockets. A socket's address is at most about a hundred bytes, so it goes by the open directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._short = Path(f"/proc/self/fd/{self._file}").exists()

    def address(self, name: str) -> str:
        return f"/proc/self/fd/{self._file}/{name}" if self._short else str(self._directory / name)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
