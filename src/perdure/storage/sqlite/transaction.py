"""Runs a handler's transaction on a connection of its own. It keeps the writer's thread busy for as long as it is open.

SQLite has one write lock. While a handler has it, the other writes of this process wait in the writer's queue, and those of
other processes wait for the write lock. So the transaction is rolled back when it takes too long.
"""

from __future__ import annotations

import threading
import time
from asyncio import AbstractEventLoop, Future, get_running_loop, shield, timeout
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from perdure.core.clock import SECOND, MicrosReader
from perdure.core.lifecycle import Change
from perdure.core.record import NewJob
from perdure.errors import StoreError
from perdure.storage.contract import (
    ACCEPTED,
    CHUNK,
    ENDED_BY_HANDLER,
    EnqueueResult,
    MissingParent,
    QueueAtCapacity,
    StoreTransaction,
    Verdict,
)

from .connection.busy import roll_back
from .connection.driver import Connection
from .connection.process_shared import Shared
from .connection.work import Work
from .edges.resolve_edges import resolve_edges
from .errors import explain, is_trouble
from .writing.apply import PreparedChanges, apply
from .writing.enqueue import PreparedJobs, enqueue

T = TypeVar("T")
Request = tuple[Callable[[], Any], "Future[Any]"]


class SqliteTransaction(StoreTransaction):
    """The event loop puts requests into a queue, and the writer's thread runs them."""

    exclusive = True

    def __init__(self, shared: Shared, longest: int, now: MicrosReader) -> None:
        self._shared = shared
        self._longest = longest / SECOND
        self._now = now
        self._loop: AbstractEventLoop = get_running_loop()
        self._begun: Future[None] = self._loop.create_future()
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._lock = threading.Lock()
        self._over: str | None = None
        self._work: Work | None = None
        self.connection: Any = None

    async def begin(self) -> None:
        """Wait for the writer's thread and the write lock, then begin."""
        database = self._shared.database
        ended = database.alone(self._run, limited=False)
        ended.add_done_callback(self._pass_error)
        limit = timeout(database.limit)
        try:
            async with limit:
                await self._begun
        except BaseException as error:
            self._end_soon("its caller went away")
            ended.cancel()  # if it has not begun, it does not begin any more
            if isinstance(error, TimeoutError) and limit.expired():
                raise database.no_answer() from None
            raise

    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return await self._request(lambda: self._open_work().connection.rows(statement, parameters))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        ready = PreparedJobs(jobs)
        results = await self._request(lambda: enqueue(self._open_work(), ready, self._now()))
        if isinstance(results, (QueueAtCapacity, MissingParent)):
            raise results
        return ready.results() if results is None else results

    async def complete(self, change: Change) -> Verdict:
        # a caller that stops waiting must not cancel the commit
        return await shield(self._request(lambda: self._complete(change)))

    async def rollback(self) -> None:
        try:
            await self._request(lambda: self._roll_back("it was rolled back"))
        except StoreError:
            pass  # it has ended already

    async def is_lost(self, error: BaseException) -> bool:
        return is_trouble(error, self._shared.driver)

    # -- from the loop's thread ----------------------------------------------------------------------
    def _request(self, run: Callable[[], T]) -> Future[T]:
        future: Future[T] = self._loop.create_future()
        with self._lock:
            if self._over is None:
                self._requests.put((run, future))
                return future
        future.set_exception(StoreError(f"this transaction is over: {self._over}"))
        return future

    def _end_soon(self, why: str) -> None:
        self._request(lambda: self._roll_back(why)).add_done_callback(
            lambda ended: ended.cancelled() or ended.exception()
        )

    def _pass_error(self, ended: Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not self._begun.done():
            self._begun.set_exception(error)

    # -- in the writer's thread ----------------------------------------------------------------------
    def _run(self, writer: Connection) -> None:
        database = self._shared.database
        own = writer if self._shared.file.in_memory else database.retry_while_busy(self._shared.keeper.connect)
        try:
            with database.write_lock:
                # a new connection has SQLite's own kind of rollback journal, which does not survive a power loss
                database.retry_while_busy(self._shared.keeper.check, own)
                database.writing = True
                self._serve(own)
        finally:
            database.wrote_at, database.writing = time.time(), False
            if own is not writer:
                own.close()
        if self._work is not None:
            database.notify(self._work.ready, changed=self._work.changed)

    def _serve(self, connection: Connection) -> None:
        database = self._shared.database
        database.retry_while_busy(connection.rows, "BEGIN IMMEDIATE")
        self._work = Work(connection, database.driver, database.hints, careful=True)
        self.connection = connection.raw
        deadline = time.monotonic() + self._longest
        self._answer(self._begun, None, None)
        while self._over is None:
            try:
                run, future = self._requests.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self._roll_back(
                    f"it took longer than {self._longest:g} s and was rolled back; open it last, keep it short"
                )
                break
            self._serve_one(run, future)
        self._refuse_the_rest()

    def _serve_one(self, run: Callable[[], Any], future: Future[Any]) -> None:
        try:
            answer = run()
        except self._shared.driver.error as error:
            self._answer(future, None, explain(error, self._shared.driver, self._shared.file))
        except BaseException as error:
            self._answer(future, None, error)
        else:
            self._answer(future, answer, None)

    def _complete(self, change: Change) -> Verdict:
        try:
            work, now = self._open_work(), self._now()
            verdict = apply(work, PreparedChanges([change]), now)[0]
            if verdict is ACCEPTED:
                resolve_edges(work, CHUNK, now)
                self._shared.database.retry_while_busy(work.connection.rows, "COMMIT")
        except BaseException:
            self._roll_back("it could not be committed")
            raise
        if verdict is ACCEPTED:
            self._close("it is committed")
        else:
            self._roll_back("its completion was refused")
        return verdict

    def _roll_back(self, why: str) -> None:
        work = self._begun_work()
        roll_back(work.connection)
        work.ready, work.changed = set(), False
        self._close(why)

    def _close(self, why: str) -> None:
        with self._lock:
            self._over = self._over or why

    def _refuse_the_rest(self) -> None:
        while not self._requests.empty():
            _, future = self._requests.get()
            self._answer(future, None, StoreError(f"this transaction is over: {self._over}"))

    def _open_work(self) -> Work:
        work = self._begun_work()
        if not work.connection.in_transaction():
            raise StoreError(ENDED_BY_HANDLER)
        return work

    def _begun_work(self) -> Work:
        assert self._work is not None
        return self._work

    def _answer(self, future: Future[Any], answer: Any, error: BaseException | None) -> None:
        def set_result() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(set_result)
        except RuntimeError:
            self._close("its loop is closed")
