"""Logs which handler blocks the event loop, and at which line, from a thread that reads the stack of the loop.

A handler that blocks the loop stops every other handler of this worker. Afterwards the lease keeper can log for how long
it was blocked, but not where. The thread needs the interpreter's lock for a moment, so it cannot report code that blocks
the loop *and* holds the lock. A supervisor can.
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

CHECK_EVERY = 0.25  # seconds
CHECK_EVERY_WHEN_IDLE = 1.0  # seconds, while no handler is on the loop
BLOCKED_FOR = 1.0  # seconds without a turn of the loop
_NOT_THE_USERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PERDURE = os.path.dirname(errors.__file__) + os.sep


class LoopWatchdog:
    """Watches the event loop of the thread that constructs it, while handlers are on it (`busy`). It schedules a
    callback; if the loop does not run it in time, it logs the stack. `drivers` is the code that drives handlers."""

    def __init__(self, busy: Callable[[], bool], drivers: frozenset[CodeType]) -> None:
        self._busy = busy
        self._drivers = drivers
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._stopping = threading.Event()
        self._asked_at: float | None = None  # None: the loop has run the callback
        self._logged = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="perdure block watch", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_EVERY if self._busy() or self._asked_at else CHECK_EVERY_WHEN_IDLE):
            asked_at = self._asked_at
            if asked_at is None and self._busy():
                self._asked_at, self._logged = monotonic(), False
                try:
                    self._loop.call_soon_threadsafe(self._note_turn)
                except RuntimeError:  # the loop is closed
                    return
            elif asked_at is not None and monotonic() - asked_at > BLOCKED_FOR and not self._logged:
                self._logged = True
                self._log(monotonic() - asked_at)

    def _note_turn(self) -> None:
        self._asked_at = None

    def _log(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread)
        if frame is not None:
            log.loop_is_blocked(seconds, line_of(frame), record_in(frame, self._drivers))


def line_of(frame: FrameType) -> str:
    """The innermost line of the user's code, or the innermost line of all."""
    shown = frame
    outer: FrameType | None = frame
    while outer is not None:
        if _is_users(outer.f_code.co_filename):
            shown = outer
            break
        outer = outer.f_back
    code = shown.f_code
    source = linecache.getline(code.co_filename, shown.f_lineno).strip()
    return f"{code.co_filename}:{shown.f_lineno} in {code.co_name}" + (f": {source}" if source else "")


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
