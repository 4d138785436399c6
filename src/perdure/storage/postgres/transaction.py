"""A handler's transaction: a connection of its own, READ COMMITTED, without a lock when it begins.

The guarded completion is its last statement, so that nothing waits for the job's row while the handler works. The
transaction is rolled back when it takes too long: by a timer here, and by the server if this process is gone.

What a handler does to its session (SET, temporary tables, session locks) must not affect the next one. So a connection that
may have been changed in this way, or that the handler used directly, is closed afterwards and not used again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Change
from perdure.core.record import NewJob
from perdure.errors import StoreError
from perdure.storage.contract import ACCEPTED, ENDED_BY_HANDLER, EnqueueResult, StoreTransaction, Verdict

from .connection.errors import explain, unavailable
from .connection.pool import hang_up
from .connection.server import SETTLE_WITHIN, Connection, Server
from .writing.apply import Apply, Effects
from .writing.enqueue import Enqueue

T = TypeVar("T")
BEGIN_WITHIN = 20.0  # seconds after which a server that does not begin a transaction is hung up on
Finish = Callable[[Effects], Awaitable[None]]  # what is done after the commit

# words of statements that outlive their transaction
_LASTING = re.compile(
    r"(?:^|;)\s*(?:set\s+(?!local\b|transaction\b|constraints\b)|reset\b|discard\b|prepare\b|listen\b|load\b)"
    r"|\b(?:create|into)\s+(?:\w+\s+)?temp|\bset_config\b|\bpg_(?:try_)?advisory_lock|\bwith\s+hold\b",
    re.IGNORECASE,
)


class PostgresTransaction(StoreTransaction):
    """See the module. One statement at a time: the connection is not shared with anybody else."""

    def __init__(
        self,
        server: Server,
        enqueue: Enqueue,
        apply: Apply,
        finish: Finish,
        now: Callable[[], int | None],
        longest: int,
    ) -> None:
        self._server = server
        self._enqueue = enqueue
        self._apply = apply
        self._finish = finish
        self._now = now
        self._longest = longest / SECOND
        self._effects = Effects()
        self._why_over: str | None = None
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None
        self._too_late: str | None = None
        self._connection: Any = None
        self._committing = False
        self._unwanted = False  # whoever began it was cancelled before it had begun
        self._changed = False  # the session is not as it was

    @property
    def connection(self) -> Any:
        """The driver's own connection, for the handler."""
        self._changed = True
        return self._connection

    async def begin(self) -> None:
        try:
            await self._server.calls.run(self._begin())
        except asyncio.CancelledError:
            self._unwanted = True
            if self._connection is not None:
                await self.rollback()
            raise

    async def _begin(self) -> None:
        connection = await self._server.lend()
        late = asyncio.get_running_loop().call_later(BEGIN_WITHIN, hang_up, connection)
        try:
            await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            longest = f"{max(1000, round(2000 * self._longest))}ms"
            await connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (longest,))
        except psycopg.Error as error:
            await self._server.give_back(connection)
            raise explain(error, str(self._server.address)) from error
        finally:
            late.cancel()
        self._connection = connection
        if self._unwanted:
            await self._end(True, "its caller was cancelled")
        else:
            self._timer = asyncio.get_running_loop().call_later(self._longest, self._undo_when_late)

    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        self._changed = self._changed or _LASTING.search(statement) is not None

        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            # without parameters a % means itself, as everywhere in psycopg
            cursor = await connection.execute(statement.encode(), parameters or None)
            return await cursor.fetchall() if cursor.description is not None else []

        return await self._inside(run)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        put = self._enqueue.insert_planned
        placed = await self._inside(lambda connection: put(connection, jobs, self._now(), brief=False))
        self._effects.ready |= {job.queue for job in jobs}
        self._effects.resolves = self._effects.ranks = True
        return placed

    async def complete(self, change: Change) -> Verdict:
        # who stops waiting for the answer must not leave the commit to chance
        return await self._server.calls.run(self._complete(change))

    async def rollback(self) -> None:
        if self._why_over is None:
            await self._server.calls.run(self._undo("it was rolled back"))

    async def _undo(self, why: str) -> None:
        """End the statement that still runs, whose caller is gone, and roll back."""
        if self._turn.locked() and not self._committing:
            with suppress(psycopg.Error, OSError):
                await self._connection.cancel_safe(timeout=SETTLE_WITHIN)
            late = asyncio.get_running_loop().call_later(SETTLE_WITHIN, hang_up, self._connection)
        else:
            late = None
        async with self._turn:
            if late is not None:
                late.cancel()
            await self._end(True, why)

    async def is_lost(self, error: BaseException) -> bool:
        """An error of another server leaves this connection open, and its transaction as it was."""
        if self._why_over is not None or not unavailable(error):
            return False
        connection: Connection = self._connection
        return connection.closed or connection.info.transaction_status == TransactionStatus.INERROR

    # -- below ---------------------------------------------------------------------------------------
    async def _complete(self, change: Change) -> Verdict:
        async with self._turn:
            self._check()
            self._committing = True
            connection: Connection = self._connection
            try:
                if connection.info.transaction_status == TransactionStatus.INERROR:
                    raise StoreError("a statement in it failed, and PostgreSQL commits nothing after that")
                verdict = (await self._apply.apply(connection, [change], self._effects, self._now()))[0]
                if verdict is ACCEPTED:
                    await connection.execute("COMMIT")
            except BaseException as error:
                await self._end(True, "it could not be committed")
                if isinstance(error, psycopg.Error):
                    raise explain(error, str(self._server.address)) from error
                raise
            if verdict is ACCEPTED:
                await self._end(False, "it is committed")
                await self._finish(self._effects)
            else:
                await self._end(True, "its completion was refused")
            return verdict

    async def _inside(self, run: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._server.calls.run(self._in_turn(run))
        except psycopg.Error as error:
            if self._too_late is not None:
                raise StoreError(f"this transaction is over: {self._too_late}") from error
            raise explain(error, str(self._server.address)) from error

    async def _in_turn(self, run: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            self._check()
            return await run(self._connection)

    def _check(self) -> None:
        over = self._why_over or self._too_late  # the latter is about to undo it
        if over is not None:
            raise StoreError(f"this transaction is over: {over}")
        if self._connection.info.transaction_status == TransactionStatus.IDLE:
            raise StoreError(ENDED_BY_HANDLER)

    def _undo_when_late(self) -> None:
        self._late = asyncio.get_running_loop().create_task(self._undo_late(), name="perdure late transaction")

    async def _undo_late(self) -> None:
        self._too_late = f"it took longer than {self._longest:g} s and was rolled back; open it last and keep it short"
        if self._why_over is None:
            await self._undo(self._too_late)

    async def _end(self, undo: bool, why: str) -> None:
        if self._why_over is not None:
            return
        self._why_over = why
        if self._timer is not None:
            self._timer.cancel()
        connection: Connection = self._connection
        late = asyncio.get_running_loop().call_later(SETTLE_WITHIN, hang_up, connection)
        try:
            if undo and not connection.closed:
                await connection.rollback()
            if self._changed:
                await connection.close()
        except psycopg.Error:
            await connection.close()
        finally:
            late.cancel()
        await self._server.give_back(connection)
