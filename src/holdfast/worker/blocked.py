"""Who blocks the event loop, and at which line: told while it does, from a thread that looks at the loop's stack.

A handler that blocks the loop holds up every other one of this worker. Once it is over, one can tell for how long
(`keeper`), but no longer where. This thread needs the interpreter's lock for a moment: code that blocks the loop *and* holds
the lock keeps it from looking. A supervisor has other means then.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from ..job import Record
from ..observe import log

LOOKS_EVERY = 0.25  # seconds
BLOCKED_FOR = 1.0  # seconds without a turn of the loop
_NOT_THE_USERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_HOLDFAST = __file__.rpartition("worker")[0]


class BlockWatch:
    """Looks at the loop of the thread it is made in. `turned_at` tells when that loop last turned; `drivers` is code that
    drives handlers."""

    def __init__(self, turned_at: Callable[[], float], drivers: frozenset[CodeType]) -> None:
        self._turned_at = turned_at
        self._drivers = drivers
        self._looks_at = threading.get_ident()
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="holdfast block watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        told_of = 0.0  # the turn after which the loop stood still
        while not self._over.wait(LOOKS_EVERY):
            turned_at = self._turned_at()
            if monotonic() - turned_at > BLOCKED_FOR and turned_at != told_of:
                told_of = turned_at
                frame = sys._current_frames().get(self._looks_at)
                if frame is not None:
                    log.loop_is_blocked(monotonic() - turned_at, line_of(frame), record_in(frame, self._drivers))


def line_of(frame: FrameType) -> str:
    """Where the innermost code of the user is; else the innermost of all."""
    place = frame
    outer: FrameType | None = frame
    while outer is not None:
        if _is_users(outer.f_code.co_filename):
            place = outer
            break
        outer = outer.f_back
    code = place.f_code
    source = linecache.getline(code.co_filename, place.f_lineno).strip()
    return f"{code.co_filename}:{place.f_lineno} in {code.co_name}" + (f": {source}" if source else "")


def record_in(frame: FrameType | None, drivers: frozenset[CodeType]) -> Record | None:
    """The job whose handler this stack is in, if it is in one."""
    while frame is not None:
        if frame.f_code in drivers:
            driven: Any = frame.f_locals.get("attempt") or frame.f_locals.get("batch")
            return None if driven is None else driven.record
        frame = frame.f_back
    return None


def _is_users(file: str) -> bool:
    return not file.startswith((*_NOT_THE_USERS, _HOLDFAST, "<frozen"))
