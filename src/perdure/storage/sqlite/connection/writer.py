"""Runs the reads and writes of one file in this process: one writer thread and one reader thread for all event loops.

The writer takes functions from a queue and runs all that wait in one transaction, with one fsync for all. If one of them
fails, all are rolled back and each is run in a transaction of its own, so that only the bad one fails. So a function may run
twice, and must not keep anything from the first time. A caller that stops waiting leaves the file sound: its function runs
completely or not at all.

However many callers wait for a file that another program has locked, each has its answer or an error within the limit,
counted from its call. A function for which no caller waits any more is not started."""

from __future__ import annotations

import logging
import threading
import time
from asyncio import Future
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from perdure.errors import PerdureError, StoreUnavailable

from ..errors import explain, explanation, misread
from .busy import BUSY_LIMIT, retry_of, roll_back
from .database_file import DatabaseFile
from .driver import BUSY, Connection, Driver
from .fair_write_lock import FairWriteLock
from .file_connections import FileConnections, Prepare
from .journal_mode import CHECKPOINT, QUIET, Checkpoints
from .work import FileHints, RetryRowByRow, Work, WorkItem, deliver

T = TypeVar("T")

TOGETHER = 128  # functions in one transaction
JOIN_WITHIN = 5.0  # seconds that the threads get to end
MODE_CHECKED_EVERY = 60.0
STILL_WITHIN = 10.0
# what our own code raises when a stored value is not what it should be
_MISREADINGS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    msgspec.MsgspecError,
)
_log = logging.getLogger("perdure")


class Writer:
    """The connections and threads of one file in this process. It calls `notify` for each commit: before it with the queues
    that get ready jobs, after it if a job has changed."""

    def __init__(
        self,
        file: DatabaseFile,
        driver: Driver,
        connect: Callable[[], Connection],
        check_mode: Callable[[Connection], None],
        notify: Callable[[Collection[str], bool], None],
    ) -> None:
        self.file = file
        self.driver = driver
        self.limit = BUSY_LIMIT  # seconds within which every caller has an answer or an error
        self._busy = False  # another program keeps the file locked
        self._current = threading.local()  # the items that this thread runs
        self._check_mode = check_mode
        self._notify = notify
        self.retry_while_busy = retry_of(driver, self.limit, self._go_on)
        self.prepares: dict[object, Prepare] = {}  # by store or outbox
        self._links = FileConnections(file, partial(self.retry_while_busy, connect), self._prepare)
        self._write_lock = FairWriteLock(None)
        self._checkpoints = Checkpoints(in_memory=file.in_memory)
        self.hints = FileHints()
        self._in_use = (threading.Lock(), threading.Lock())  # by the writer and the reader, while they use a connection
        self._mode_checked = -MODE_CHECKED_EVERY
        self.writing = False
        self.wrote_at = 0.0  # by the clock that dates the file
        self._writes: SimpleQueue[WorkItem[Any] | None] = SimpleQueue()
        self._reads: SimpleQueue[WorkItem[Any] | None] = self._writes if file.in_memory else SimpleQueue()
        self._threads = [threading.Thread(target=self._run_writer, name="perdure-sqlite-writer", daemon=True)]
        if not file.in_memory:
            self._threads.append(threading.Thread(target=self._run_reader, name="perdure-sqlite-reader", daemon=True))
        for thread in self._threads:
            thread.start()

    # -- for the loops -------------------------------------------------------------------------------
    def write(self, run: Callable[[Work], T]) -> Future[T]:
        """Run a function in a write transaction, perhaps together with others."""
        return self._put(self._writes, WorkItem(run, transaction=True))

    def alone(self, run: Callable[[Connection], T], *, limited: bool = True) -> Future[T]:
        """Run a function on the writer's connection that begins its own transactions. `limited`: within the limit."""
        return self._put(self._writes, WorkItem(run, transaction=False), limited=limited)

    def read(self, run: Callable[[Connection], T]) -> Future[T]:
        """Run a function that only reads. It is run again when the file is busy."""
        return self._put(self._reads, WorkItem(run, transaction=False))

    def stop(self) -> None:
        """Run what is in the queues, then end the threads."""
        self._writes.put(None)
        if self._reads is not self._writes:
            self._reads.put(None)

    def join(self) -> None:
        """Wait for the threads, but not for ever: another program may keep the file locked."""
        until = time.monotonic() + JOIN_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def pause_for_fork(self) -> None:
        """Before a fork: wait for the running functions and close the connections, which open again when needed. SQLite
        keeps the state of a file's locks in the process, and a child would inherit it."""
        for lock in self._in_use:
            lock.acquire(timeout=STILL_WITHIN)
        if self.file.in_memory:
            return
        self._links.close("writer")
        self._links.close("reader")

    def resume_after_fork(self) -> None:
        for lock in self._in_use:
            if lock.locked():
                lock.release()

    def abandon(self) -> None:
        """In a forked child: the threads are gone, and the connections are the parent's."""
        self._write_lock.close()

    def _put(self, queue: SimpleQueue[WorkItem[Any] | None], item: WorkItem[T], *, limited: bool = True) -> Future[T]:
        if limited:
            item.timer = item.loop.call_later(self.limit, self._expire, item)
        queue.put(item)
        return item.future

    def _expire(self, item: WorkItem[Any]) -> None:
        if item.wanted:
            item.future.set_exception(self.no_answer())

    def no_answer(self) -> StoreUnavailable:
        """The error for a caller whose time is over."""
        why = explanation(BUSY) if self._busy else "what was asked before takes too long"
        return StoreUnavailable(f"{self.file}: no answer within {self.limit:g} s: {why}").at(self.file)

    def _go_on(self, busy: bool) -> bool:
        """Whether to try again after the file was found locked (`busy`): only while a caller waits."""
        self._busy = busy
        items: Sequence[WorkItem[Any]] = getattr(self._current, "items", ())
        return not items or any(item.wanted for item in items)

    # -- the writer ----------------------------------------------------------------------------------
    def _run_writer(self) -> None:
        stopping = False
        while not stopping:
            batch, stopping = self._next_batch()
            try:
                with self._in_use[0]:
                    self._perform(batch)
            except BaseException as error:
                for item in batch:
                    item.error = error
            deliver(batch)
            self._current.items = ()
            del batch
        self._links.close("writer")
        self._write_lock.close()

    def _next_batch(self) -> tuple[list[WorkItem[Any]], bool]:
        """The waiting items that can share a transaction, and whether the thread is to end."""
        batch: list[WorkItem[Any]] = []
        item = self._first()
        while item is not None:
            if item.wanted:
                batch.append(item)
            if not item.transaction or len(batch) >= TOGETHER:
                return batch, False
            try:
                item = self._writes.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _first(self) -> WorkItem[Any] | None:
        """The next item. A pause is used for a checkpoint, which would delay a commit later."""
        if self._checkpoints.due:
            try:
                return self._writes.get(timeout=QUIET)
            except Empty:
                self._checkpoint()
        return self._writes.get()

    def _checkpoint(self) -> None:
        self._checkpoints.reset()
        try:
            with self._in_use[0]:
                self.writing = True  # the watch of the file then knows that it was us
                self.writer().rows(CHECKPOINT)
        except (self.driver.error, PerdureError):
            _log.debug("%s: no checkpoint", self.file, exc_info=True)
        finally:
            self.wrote_at, self.writing = time.time(), False

    def _perform(self, batch: Sequence[WorkItem[Any]]) -> None:
        together = [item for item in batch if item.transaction]
        alone = [item for item in batch if not item.transaction]
        if together and not self._attempt(together, careful=False):
            for item in together:
                if item.wanted:
                    self._attempt([item], careful=True)
        for item in alone:
            self._current.items = [item]
            try:
                item.answer = item.run(self.writer())
            except BaseException as error:
                item.error = self._explain(error)

    def _attempt(self, batch: Sequence[WorkItem[Any]], *, careful: bool) -> bool:
        """Run the batch in one transaction. False: it was rolled back, and each item is to be run alone."""
        self._current.items = batch
        try:
            work = Work(self.writer(), self.driver, self.hints, careful=careful)
            with self._write_lock:
                self._check_journal_mode(work.connection)
                self.writing = True
                self._in_transaction(work, batch)
        except BaseException as error:
            for item in batch:
                item.answer, item.error = None, self._explain(error)
            return len(batch) == 1 and not isinstance(error, RetryRowByRow)
        finally:
            self.wrote_at, self.writing = time.time(), False
        self.notify((), changed=work.changed)  # a reader would read too early before the commit
        return True

    def _in_transaction(self, work: Work, batch: Sequence[WorkItem[Any]]) -> None:
        connection = work.connection
        self.retry_while_busy(connection.rows, "BEGIN IMMEDIATE")
        try:
            for item in batch:
                if item.wanted:
                    item.answer, item.error = item.run(work), None
            # no other process can claim before the commit; one that wakes up meanwhile is the next to write
            self.notify(work.ready, changed=False)
            # a reader in the way leaves the transaction as it is: only the COMMIT is repeated
            self.retry_while_busy(connection.rows, "COMMIT")
        except BaseException:
            roll_back(connection)
            raise
        self._checkpoints.count_commit()

    def writer(self) -> Connection:
        """The writer's connection; only for its thread."""
        connection, new = self._links.get("writer")
        if new:
            self._mode_checked = -MODE_CHECKED_EVERY
            self._write_lock.close()
            self._write_lock = FairWriteLock(self.file.beside())
        return connection

    def _prepare(self, connection: Connection) -> None:
        """Prepare a file that has replaced ours."""
        _log.warning("%s has been replaced while it was in use: going on with what stands there now", self.file)
        for prepare in list(self.prepares.values()):
            prepare(connection)

    @property
    def write_lock(self) -> FairWriteLock:
        return self._write_lock

    def _check_journal_mode(self, connection: Connection) -> None:
        if time.monotonic() - self._mode_checked > MODE_CHECKED_EVERY:
            self._mode_checked = time.monotonic()
            self.retry_while_busy(self._check_mode, connection)

    def notify(self, ready: Collection[str], *, changed: bool) -> None:
        """Wake up the listeners of a commit. An error here does not undo the commit."""
        if ready or changed:
            try:
                self._notify(ready, changed)
            except Exception:
                _log.exception("a signal was not sent")

    # -- the reader ----------------------------------------------------------------------------------
    def _run_reader(self) -> None:
        while (item := self._reads.get()) is not None:
            if item.wanted:
                self._current.items = [item]
                try:
                    with self._in_use[1]:
                        item.answer = self.retry_while_busy(item.run, self._links.get("reader")[0])
                except BaseException as error:
                    item.error = self._explain(error)
                deliver([item])
                self._current.items = ()
            del item
        self._links.close("reader")

    # -- both ----------------------------------------------------------------------------------------
    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, PerdureError):
            return error
        if isinstance(error, self.driver.error):
            return explain(error, self.driver, self.file)
        if isinstance(error, _MISREADINGS):
            return misread(error, self.file)
        return error
