"""A handler's transaction: a session of its own, whose commit contains the handler's writes and the job's completion.

A transaction of MongoDB reads a snapshot, and is aborted when it writes a document that has changed since. A renewal of the
lease, or the write of the handler's start, would change the job's own document. So the transaction pins the job: its first
write is to it. Other writers of the job conflict from then on and wait, for at most the few seconds that a transaction may
last; renewals skip it, because a pinned job is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any, TypeVar

from bson import ObjectId

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob
from perdure.errors import StoreError, StoreUnavailable
from perdure.storage.contract import ACCEPTED, REPEATED, EnqueueResult, StoreTransaction, Verdict
from perdure.storage.driver_calls import GivenUp
from perdure.storage.rules.guards import judge

from .connection.errors import (
    NO_SUCH_TRANSACTION,
    OUT_OF_DISK,
    error_for,
    has_code,
    is_conflict,
    is_transient,
    is_unavailable,
)
from .connection.operations import Steps, run_async, update
from .connection.server import TROUBLE, Retries, Server
from .edges.resolve_edges import EdgeResolution, resolve_edges_of
from .writing.apply import Applied, apply
from .writing.enqueue import enqueue
from .writing.updates import read_rows

T = TypeVar("T")
Tell = Callable[[Collection[str], bool], None]
ResolveEdges = Callable[[Sequence[str]], Awaitable[object]]


class MongoTransaction(StoreTransaction):
    """See the module. `connection` is the session: pass it to every call of pymongo that belongs inside."""

    def __init__(
        self, server: Server, longest: int, now: Callable[[], int], tell: Tell, resolve: ResolveEdges, pinned: set[str]
    ) -> None:
        self._server = server
        self._longest = longest / SECOND
        self._now = now
        self._tell = tell
        self._resolve = resolve
        self._pinned = pinned
        self._job: str | None = None
        self._ready: set[str] = set()
        self._left: list[str] = []  # entries on the list for `resolve_edges`
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()  # a session makes one call at a time
        self._why_over: str | None = None
        self._is_late = False
        self._began = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._undoing: asyncio.Task[None] | None = None
        self.connection: Any = None

    async def begin(self, hold: Hold | None) -> None:
        if hold is not None and hold.id not in self._pinned:
            self._job = hold.id
            self._pinned.add(hold.id)
        try:
            await self._begin(hold)
        except BaseException:
            await self._end("it could not begin")
            raise
        if self._why_over is None:
            self._timer = asyncio.get_running_loop().call_later(self._longest, self._undo_when_late)

    async def _begin(self, hold: Hold | None) -> None:
        """Begin, and pin the job. If a renewal is under way, that is a conflict before anything was written: begin
        again."""
        if hold is not None:
            await self._server.write_start_now(hold, self._now())
        retries = Retries(self._longest)
        while True:
            self.connection = await self._stack.enter_async_context(self._server.begin())
            if hold is None:
                return
            try:
                await self._run(run_async(_pin(hold), self._server.database, self.connection))
                return
            except TROUBLE as error:
                if not is_transient(error) or retries.over:
                    raise error_for(error, self._server.address) from error
            await self._run(self._stack.aclose())
            await retries.pause()

    async def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the session to its end, after earlier ones, even if its caller is cancelled."""

        async def in_turn() -> T:
            async with self._turn:
                return await call

        return await self._server.calls.run(in_turn())

    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        self._check()
        raise StoreError(
            "MongoDB has no SQL: write with pymongo and hand over session=tx.connection, "
            'e.g. await tx.connection.client["shop"]["orders"].insert_one(order, session=tx.connection)'
        )

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        done = await self._take(enqueue(jobs, self._now(), 0, EdgeResolution.AFTERWARDS))
        self._ready |= done.ready
        self._left += done.left + done.unmade
        return done.placed

    async def complete(self, change: Change) -> Verdict:
        self._check()
        if self._timer is not None:  # the handler has returned: from here on only the server can be slow
            self._timer.cancel()
        # who stops waiting for the answer must not leave the commit to chance
        return await asyncio.shield(asyncio.ensure_future(self._complete(change)))

    async def rollback(self) -> None:
        await self._undo("it was rolled back")

    async def is_lost(self, error: BaseException) -> bool:
        """Whether the transaction was lost with its server. The driver marks errors of transactions; errors of another
        server, used without a transaction, have no mark."""
        gone = is_transient(error) and is_unavailable(error)
        return gone or has_code(error, OUT_OF_DISK) or self._late_by_the_server

    @property
    def _late_by_the_server(self) -> bool:
        """Whether its time ran out while the server was gone: then the handler could not have been faster."""
        return self._is_late and self._server.lost_servers.at >= self._began

    async def _complete(self, change: Change) -> Verdict:
        try:
            try:
                steps = _apply_completion(change, self._now())
                applied = await self._run(run_async(steps, self._server.database, self.connection))
            except TROUBLE as error:
                if not is_conflict(error):
                    raise
                return await self._undo_overtaken(change)
            (verdict,) = applied.verdicts
            if verdict is not ACCEPTED:
                await self._undo("its completion was refused")
                return verdict
            try:
                await self._run(self._server.commit(self.connection, Retries()))
            except TROUBLE as error:
                if not has_code(error, NO_SUCH_TRANSACTION) or not await self._was_committed(change):
                    raise
        except TROUBLE as error:
            await self._undo("it could not be committed")
            raise error_for(error, self._server.address) from error
        except BaseException:
            await self._undo("it could not be committed")
            raise
        await self._end("it is committed")
        self._tell(self._ready | applied.ready, applied.changed)
        if left := self._left + applied.left:
            await self._resolve(left)
        return verdict

    async def _was_committed(self, change: Change) -> bool:
        """Whether a transaction that the server has forgotten was committed: then this change has ended the job."""
        verdict = await self._server.write(lambda: _judge(change, self._now()))
        return verdict is REPEATED

    async def _undo_overtaken(self, change: Change) -> Verdict:
        """Another transaction changed the job, which this one had not pinned. Undo, and judge the change again."""
        await self._undo("its job was moved meanwhile")
        verdict = await self._server.read(lambda: _judge(change, self._now()))
        if verdict is ACCEPTED:
            raise StoreError("the transaction met another move of its job and was rolled back; run it again")
        return verdict

    async def _take(self, steps: Steps[T]) -> T:
        self._check()
        try:
            return await self._run(run_async(steps, self._server.database, self.connection))
        except TROUBLE as error:
            self._check()
            raise error_for(error, self._server.address) from error

    def _check(self) -> None:
        if self._late_by_the_server:
            raise StoreUnavailable(f"the transaction was lost: {self._why_over}").at(self._server.address)
        if self._why_over is not None:
            raise StoreError(f"this transaction is over: {self._why_over}")

    def _undo_when_late(self) -> None:
        why = f"it took longer than {self._longest:g} s and was rolled back; open it last and keep it short"
        if self._why_over is None:
            self._why_over, self._is_late = why, True
            self._undoing = asyncio.ensure_future(self._end(why))

    async def _undo(self, why: str) -> None:
        if self._undoing is not None:
            await asyncio.wait([self._undoing])
        elif self._why_over is None:
            await self._end(why)

    async def _end(self, why: str) -> None:
        """End the session too: a handler that goes on using it must not write outside a transaction by mistake."""
        self._why_over = why
        if self._timer is not None:
            self._timer.cancel()
        try:
            with suppress(GivenUp):  # and with it the session
                await self._run(self._stack.aclose())
        finally:
            if self._job is not None:
                self._pinned.discard(self._job)
                self._job = None


def _apply_completion(change: Change, now: int) -> Steps[Applied]:
    """Apply the completion. It writes to no other job: a conflict would undo the handler's work."""
    applied = yield from apply([change], now, EdgeResolution.AFTERWARDS)
    followed = yield from resolve_edges_of(applied.parents, EdgeResolution.AFTERWARDS, 0, now)
    return applied._replace(left=applied.left + followed.left)


def _judge(change: Change, now: int) -> Steps[Verdict]:
    rows = yield from read_rows([change.id])
    return judge(rows.get(change.id), change, now)


def _pin(hold: Hold) -> Steps[None]:
    mine = {"_id": hold.id, "state": "running", "attempt": hold.attempt, "stamp": hold.stamp}
    yield from update("jobs", [{"q": mine, "u": {"$set": {"pins": ObjectId()}}}])
