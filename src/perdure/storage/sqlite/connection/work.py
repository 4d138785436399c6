"""What the writer thread hands to a write transaction: the connection, hints from earlier transactions, and the future that
gets the answer."""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop, Future, TimerHandle, get_running_loop
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from perdure.core.record import Record
from perdure.errors import StoreError

from .driver import Connection, Driver

T = TypeVar("T")

UNUSED_POLICIES_EVERY = 3600.0  # seconds


class RetryRowByRow(Exception):
    """A fast path does not apply: roll back, and use the general path."""


class FileHints:
    """What this process remembers of the file from one transaction to the next. A wrong hint costs time and nothing else."""

    def __init__(self) -> None:
        self.heads: dict[Any, Record] = {}  # what most jobs of a lane or gate are like
        self._policies_at = -UNUSED_POLICIES_EVERY

    def is_policy_search_due(self) -> bool:
        """Whether it is time again to search for policies that no job has."""
        now = time.monotonic()
        if now - self._policies_at < UNUSED_POLICIES_EVERY:
            return False
        self._policies_at = now
        return True


class Work:
    """What a function gets that runs in a write transaction: the connection, and a record of what the commit changes.
    `careful`: it runs alone, and must not use fast paths."""

    def __init__(self, connection: Connection, driver: Driver, hints: FileHints, *, careful: bool) -> None:
        self.connection = connection
        self.hints = hints
        self.error = driver.error
        self.code = driver.code
        self.careful = careful
        self.ready: set[str] = set()  # queues in which jobs became ready
        self.changed = False  # a job ended or reported progress


class WorkItem(Generic[T]):
    """A function for a thread of the file, and the future of its caller."""

    __slots__ = ("answer", "error", "future", "loop", "run", "timer", "transaction")

    def __init__(self, run: Callable[[Any], T], *, transaction: bool) -> None:
        self.run = run
        self.transaction = transaction
        self.loop: AbstractEventLoop = get_running_loop()
        self.future: Future[T] = self.loop.create_future()
        self.timer: TimerHandle | None = None
        self.answer: T | None = None
        self.error: BaseException | None = None

    @property
    def wanted(self) -> bool:
        """Whether its caller still waits for it."""
        return not self.future.done()


def deliver(items: Sequence[WorkItem[Any]]) -> None:
    """Give the answers to the callers, with one wake-up for each event loop."""
    loops: dict[AbstractEventLoop, list[WorkItem[Any]]] = {}
    for item in items:
        loops.setdefault(item.loop, []).append(item)
    for loop, of_loop in loops.items():
        try:
            loop.call_soon_threadsafe(_set_results, of_loop)
        except RuntimeError:
            pass  # the loop is closed: no caller waits any more


def _set_results(items: Sequence[WorkItem[Any]]) -> None:
    for item in items:
        if item.timer is not None:
            item.timer.cancel()
        if item.future.done():
            continue
        if item.error is None:
            item.future.set_result(item.answer)
        else:
            item.future.set_exception(_raisable(item.error))


def _raisable(error: BaseException) -> BaseException:
    """The error as a future can raise it."""
    return StoreError(f"unexpected {error!r}") if isinstance(error, StopIteration) else error
