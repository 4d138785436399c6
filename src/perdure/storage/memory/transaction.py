"""A handler's transaction on the memory store.

Statements run on a small SQL database in memory that belongs to the store, so that a handler written for SQL
runs in a unit test. It has one connection, and transactions take turns on it. Jobs enqueued inside are kept back; the
completion places them, writes its change and commits the statements, or none of it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from asyncio import get_running_loop, wrap_future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Change
from perdure.core.record import NewJob
from perdure.errors import StoreError
from perdure.storage.contract import ENDED_BY_HANDLER, EnqueueResult, StoreTransaction, Verdict

Plan = Callable[[Sequence[NewJob]], list[EnqueueResult]]
Commit = Callable[[Change, Sequence[NewJob], Sequence[EnqueueResult], Callable[[], None]], Verdict]


class Database:
    """The store's private SQL database, one transaction at a time, whichever loop or thread it comes from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()
        self._connection: sqlite3.Connection | None = None

    async def take(self) -> sqlite3.Connection:
        """Wait for our turn and begin."""
        with self._lock:
            turn: Future[None] = Future()
            self._waiting.append(turn)
        self._pass_on()
        try:
            await wrap_future(turn)
        except BaseException:
            if not turn.cancelled():
                self.give_back()
            raise
        connection = self._opened()
        connection.execute("begin immediate")
        return connection

    def give_back(self) -> None:
        with self._lock:
            self._taken = False
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._waiting and not self._taken:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    self._taken = True
                    turn.set_result(None)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._connection.close)
        return self._connection


class MemoryTransaction(StoreTransaction):
    """See the module. `longest` is measured by the machine's clock."""

    def __init__(
        self, database: Database, connection: sqlite3.Connection, longest: int, plan: Plan, commit: Commit
    ) -> None:
        self.connection = connection
        self._database = database
        self._plan = plan
        self._commit = commit
        self._jobs: list[NewJob] = []
        self._promised: list[EnqueueResult] = []
        self._why_over: str | None = None
        self._longest = longest / SECOND
        self._deadline = time.monotonic() + self._longest
        self._timer = get_running_loop().call_later(self._longest, self._undo_when_late)

    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        self._check()
        return list(self.connection.execute(statement, parameters).fetchall())

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        self._check()
        placed = self._plan([*self._jobs, *jobs])
        self._jobs += jobs
        self._promised = placed
        return placed[len(placed) - len(jobs) :]

    async def complete(self, change: Change) -> Verdict:
        self._check()
        try:
            verdict = self._commit(change, self._jobs, self._promised, self.connection.commit)
        except BaseException:
            self._undo("it could not be committed")
            raise
        if verdict.accepted and not verdict.repeated:
            self._end("it is committed")
        else:
            self._undo("its completion was refused")
        return verdict

    async def rollback(self) -> None:
        self._undo("it was rolled back")

    def _check(self) -> None:
        self._undo_when_late()
        if self._why_over is not None:
            raise StoreError(f"this transaction is over: {self._why_over}")
        if not self.connection.in_transaction:
            raise StoreError(ENDED_BY_HANDLER)

    def _undo_when_late(self) -> None:
        if time.monotonic() >= self._deadline:
            self._undo(f"it took longer than {self._longest:g} s and was rolled back; open it last and keep it short")

    def _undo(self, why: str) -> None:
        if self._why_over is None:
            self.connection.rollback()
            self._end(why)

    def _end(self, why: str) -> None:
        self._why_over = why
        self._timer.cancel()
        self._database.give_back()
