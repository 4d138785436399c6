"""Threads for `def` handlers.

The threads share one queue, and wake the event loop once for everything that ended meanwhile. That costs a fraction of an
executor's future. Threads are started as they are needed. A thread cannot be stopped from outside: when the time of its
job is over, the job ends as a failure, the worker gives up the thread, and another may take its place.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ...observe import log

NEW_AT_ONCE = 8
W = TypeVar("W")


class Threads(Generic[W]):
    """Runs pieces of work in threads. Calls `done(piece, value, error)` on the event loop when one has ended."""

    def __init__(
        self, limit: int, work: Callable[[W], Any], done: Callable[[W, Any, BaseException | None], None]
    ) -> None:
        self._limit = limit
        self._work = work
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._todo: SimpleQueue[W | None] = SimpleQueue()
        self._ended: deque[tuple[W, Any, BaseException | None]] = deque()
        self._wake_sent = False
        self._alive = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._variables = contextvars.copy_context()

    @property
    def waiting(self) -> int:
        """Pieces that have not started."""
        return self._todo.qsize()

    def feed(self, pieces: list[W]) -> None:
        for piece in pieces:
            self._todo.put(piece)
        self.grow()

    def grow(self) -> None:
        """Start threads while work waits for one, a few at a time: short jobs are better off with few threads."""
        with self._lock:
            lacking = min(self._todo.qsize() - self._idle, self._limit - self._alive, NEW_AT_ONCE)
            self._alive += max(lacking, 0)
        for _ in range(lacking):
            threading.Thread(target=self._run, name="perdure handler", daemon=True).start()

    def take_back(self) -> list[W]:
        """Remove the pieces that have not started."""
        taken: list[W] = []
        while True:
            try:
                piece = self._todo.get_nowait()
            except Empty:
                return taken
            if piece is not None:
                taken.append(piece)

    def replace_given_up(self) -> None:
        """A thread is stuck in a job whose time is over: another may be started in its place."""
        with self._lock:
            self._limit += 1
        self.grow()

    def take_back_given_up(self) -> None:
        """A thread that had been given up has ended after all."""
        with self._lock:
            self._limit -= 1

    def close(self) -> None:
        for _ in range(self._alive):
            self._todo.put(None)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            piece = self._todo.get()
            with self._lock:
                self._idle -= 1
                if piece is None or self._alive > self._limit:
                    self._alive -= 1
                    if piece is not None:
                        self._todo.put(piece)
                    return
            self._run_one(piece)

    def _run_one(self, piece: W) -> None:
        value, error = None, None
        try:
            value = self._variables.copy().run(self._work, piece)
        except BaseException as raised:
            error = raised
        self._ended.append((piece, value, error))
        if not self._wake_sent:
            self._wake_sent = True
            try:
                self._loop.call_soon_threadsafe(self._report_ended)
            except RuntimeError:  # the loop is closed
                pass

    def _report_ended(self) -> None:
        self._wake_sent = False
        while self._ended:
            self._report_one(*self._ended.popleft())
        if self._todo.qsize():
            self.grow()

    def _report_one(self, piece: W, value: Any, error: BaseException | None) -> None:
        try:
            self._done(piece, value, error)
        except Exception as broke:  # the others have ended all the same
            log.service_failed("the way back from a thread", broke)
