"""inotify, as far as it is needed: being told once that a database file was written (Linux)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .place import Place

_MODIFY, _ONESHOT = 0x2, 0x80000000


class Watch:
    """Watches the database and its write-ahead log. `file` is -1 where there is no inotify."""

    def __init__(self, place: Place) -> None:
        self._paths = [os.fsencode(f"{place}{suffix}") for suffix in ("", "-wal")]
        self._library: Any = None
        self.file = -1
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
            self._library.inotify_add_watch(self.file, path, ctypes.c_uint32(_MODIFY | _ONESHOT))
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
