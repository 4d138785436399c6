"""Who blocks the event loop, and at which line: told while it does, from a thread that looks at the loop's stack.

A handler that blocks the loop holds up every other one of this worker. Once it is over, one can tell for how long
(`lease_keeper`), but no longer where. This thread needs the interpreter's lock for a moment: code that blocks the loop *and*
holds the lock keeps it from looking. A supervisor has other means then.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from ... import errors
from ...core.record import Record
from ...observe import log

LOOKS_EVERY = 0.25  # seconds
RESTS_FOR = 1.0  # seconds, while no handler is on the loop
BLOCKED_FOR = 1.0  # seconds without a turn of the loop
_NOT_THE_USERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PERDURE = os.path.dirname(errors.__file__) + os.sep


class LoopWatchdog:
    """Looks at the loop of the thread it is made in, while handlers are on it (`busy`): asks it to turn; when it does not,
    looks at what it does instead. `drivers` is the code that drives handlers."""

    def __init__(self, busy: Callable[[], bool], drivers: frozenset[CodeType]) -> None:
        self._busy = busy
        self._drivers = drivers
        self._loop = asyncio.get_running_loop()
        self._looks_at = threading.get_ident()
        self._over = threading.Event()
        self._asked_at: float | None = None  # None: it has turned since it was asked
        self._told = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="perdure block watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOKS_EVERY if self._busy() or self._asked_at else RESTS_FOR):
            asked_at = self._asked_at
            if asked_at is None and self._busy():
                self._asked_at, self._told = monotonic(), False
                try:
                    self._loop.call_soon_threadsafe(self._turned)
                except RuntimeError:  # the loop is closed
                    return
            elif asked_at is not None and monotonic() - asked_at > BLOCKED_FOR and not self._told:
                self._told = True
                self._tell(monotonic() - asked_at)

    def _turned(self) -> None:
        self._asked_at = None

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._looks_at)
        if frame is not None:
            log.loop_is_blocked(seconds, line_of(frame), record_in(frame, self._drivers))


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
    return not file.startswith((*_NOT_THE_USERS, _PERDURE, "<frozen"))
