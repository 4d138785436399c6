"""A SQLite file as one process uses it: one writer thread, one reader thread, shared by all event loops.

The writer takes pieces of work from a queue and runs all that wait in one transaction (one fsync for all). Should one
of them fail, all are undone and each is run in a transaction of its own, so that only the bad one fails. A piece of
work is a function of the connection; it may be run twice and must not keep anything from the first time. Answers go
back to each loop by one wake-up. Who no longer waits for an answer leaves the file as good as before: his work was
done whole, or not begun.

However many wait for a file that another program has locked, each of them has its answer or an error within the limit,
counted from when it asked. Work that nobody waits for any more is not begun.
"""

from __future__ import annotations

import logging
import threading
import time
from asyncio import AbstractEventLoop, Future, TimerHandle, get_running_loop
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from perdure.core.record import Record
from perdure.errors import PerdureError, StoreError, StoreUnavailable

from ..errors import explained, explanation, misread
from .database_file import DatabaseFile
from .driver import BUSY, LOCKED, Connection, Driver
from .fair_write_lock import FairWriteLock
from .file_connections import FileConnections, Prepare
from .journal_mode import CHECKPOINT, QUIET, Checkpoints

T = TypeVar("T")
Patiently = Callable[..., Any]

TOGETHER = 128  # pieces of work in one transaction
BUSY_PAUSE = 0.0003  # SQLite's own back-off is coarse
BUSY_LIMIT = 30.0
JOIN_WITHIN = 5.0  # seconds that the threads get to end
MODE_CHECKED_EVERY = 60.0
STILL_WITHIN = 10.0
POLICIES_LOOKED_AT_EVERY = 3600.0
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


class RetryRowByRow(Exception):
    """The short way turned out to be wrong; undo it and take the careful one."""


class FileHints:
    """What this process remembers of the file from one piece of work to the next. Nothing may depend on it but whether
    a question is asked whose answer can be lost."""

    def __init__(self) -> None:
        self.heads: dict[Any, Record] = {}  # what most jobs of a lane are like
        self._policies_at = -POLICIES_LOOKED_AT_EVERY

    def looks_for_policies(self) -> bool:
        """Whether it is time again to look for policies that no job has."""
        now = time.monotonic()
        if now - self._policies_at < POLICIES_LOOKED_AT_EVERY:
            return False
        self._policies_at = now
        return True


class Work:
    """What a piece of work gets: the connection inside a transaction. It notes here whom its success concerns."""

    def __init__(self, connection: Connection, driver: Driver, hints: FileHints, *, careful: bool) -> None:
        self.connection = connection
        self.hints = hints
        self.error = driver.error
        self.code = driver.code
        self.careful = careful
        self.ready: set[str] = set()  # queues in which jobs became ready
        self.changed = False  # a job ended or told progress


class WorkItem(Generic[T]):
    """A piece of work under way, and who waits for it."""

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
        """Whether somebody still waits for it."""
        return not self.future.done()


class Writer:
    """The connections and threads of one file in this process. `told` hears of each commit: before it what becomes ready,
    after it that something changed."""

    def __init__(
        self,
        place: DatabaseFile,
        driver: Driver,
        connect: Callable[[], Connection],
        check_mode: Callable[[Connection], None],
        told: Callable[[Collection[str], bool], None],
    ) -> None:
        self.place = place
        self.driver = driver
        self.limit = BUSY_LIMIT  # seconds within which every caller has an answer or an error
        self._busy = False  # another program keeps the file locked
        self._at_work = threading.local()  # the pieces that this thread is at
        self._check_mode = check_mode
        self._told = told
        self.retry_while_busy = patience(driver, self.limit, self._told_busy)
        self.prepares: dict[object, Prepare] = {}  # by who uses the file
        self._links = FileConnections(place, partial(self.retry_while_busy, connect), self._prepare)
        self._turns = FairWriteLock(None)
        self._checkpoints = Checkpoints(in_memory=place.in_memory)
        self.hints = FileHints()
        self._gates = (threading.Lock(), threading.Lock())  # writer and reader, while they use a connection
        self._mode_checked = -MODE_CHECKED_EVERY
        self.writing = False
        self.wrote_at = 0.0  # by the clock that dates the file
        self._writes: SimpleQueue[WorkItem[Any] | None] = SimpleQueue()
        self._reads: SimpleQueue[WorkItem[Any] | None] = self._writes if place.in_memory else SimpleQueue()
        self._threads = [threading.Thread(target=self._write_on, name="perdure-sqlite-writer", daemon=True)]
        if not place.in_memory:
            self._threads.append(threading.Thread(target=self._read_on, name="perdure-sqlite-reader", daemon=True))
        for thread in self._threads:
            thread.start()

    # -- for the loops -------------------------------------------------------------------------------
    def write(self, run: Callable[[Work], T]) -> Future[T]:
        """Run a piece of work in a write transaction, perhaps together with others."""
        return self._put(self._writes, WorkItem(run, transaction=True))

    def alone(self, run: Callable[[Connection], T], *, limited: bool = True) -> Future[T]:
        """Run something on the writer's connection that begins its own transactions. `limited`: within the limit."""
        return self._put(self._writes, WorkItem(run, transaction=False), limited=limited)

    def read(self, run: Callable[[Connection], T]) -> Future[T]:
        """Run something that only reads, and may be run again when the file is busy."""
        return self._put(self._reads, WorkItem(run, transaction=False))

    def stop(self) -> None:
        """Finish what was asked for and end the threads."""
        self._writes.put(None)
        if self._reads is not self._writes:
            self._reads.put(None)

    def join(self) -> None:
        """Wait for the threads, but not for ever: another program may keep the file locked."""
        until = time.monotonic() + JOIN_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def hold_still(self) -> None:
        """Before a fork: wait for what is under way and close the connections, which open again when needed. SQLite
        keeps its view of a file's locks in the process; a child would inherit it and believe in it."""
        for gate in self._gates:
            gate.acquire(timeout=STILL_WITHIN)
        if self.place.in_memory:
            return
        self._links.close("writer")
        self._links.close("reader")

    def go_on(self) -> None:
        for gate in self._gates:
            if gate.locked():
                gate.release()

    def abandon(self) -> None:
        """In a forked child: the threads are gone, and the connections are the parent's."""
        self._turns.close()

    def _put(self, queue: SimpleQueue[WorkItem[Any] | None], piece: WorkItem[T], *, limited: bool = True) -> Future[T]:
        if limited:
            piece.timer = piece.loop.call_later(self.limit, self._expire, piece)
        queue.put(piece)
        return piece.future

    def _expire(self, piece: WorkItem[Any]) -> None:
        if piece.wanted:
            piece.future.set_exception(self.no_answer())

    def no_answer(self) -> StoreUnavailable:
        """For a caller whose time is over."""
        why = explanation(BUSY) if self._busy else "what was asked before takes too long"
        return StoreUnavailable(f"{self.place}: no answer within {self.limit:g} s: {why}").at(self.place)

    def _told_busy(self, busy: bool) -> bool:
        """Whether to go on trying: a thread that found the file locked asks, with True, and tells that it is free, with
        False."""
        self._busy = busy
        pieces: Sequence[WorkItem[Any]] = getattr(self._at_work, "pieces", ())
        return not pieces or any(piece.wanted for piece in pieces)

    # -- the writer ----------------------------------------------------------------------------------
    def _write_on(self) -> None:
        stopping = False
        while not stopping:
            batch, stopping = self._next_batch()
            try:
                with self._gates[0]:
                    self._perform(batch)
            except BaseException as error:
                for piece in batch:
                    piece.error = error
            _answer(batch)
            self._at_work.pieces = ()
            del batch
        self._links.close("writer")
        self._turns.close()

    def _next_batch(self) -> tuple[list[WorkItem[Any]], bool]:
        """What waits, as far as it can share a transaction."""
        batch: list[WorkItem[Any]] = []
        piece = self._first()
        while piece is not None:
            if piece.wanted:
                batch.append(piece)
            if not piece.transaction or len(batch) >= TOGETHER:
                return batch, False
            try:
                piece = self._writes.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _first(self) -> WorkItem[Any] | None:
        """What is to be done next. A pause is used for what would be in somebody's way later."""
        if self._checkpoints.due:
            try:
                return self._writes.get(timeout=QUIET)
            except Empty:
                self._checkpoint()
        return self._writes.get()

    def _checkpoint(self) -> None:
        self._checkpoints.done()
        try:
            with self._gates[0]:
                self.writing = True  # those who watch the file know that it was us
                self.writer().rows(CHECKPOINT)
        except (self.driver.error, PerdureError):
            _log.debug("%s: no checkpoint", self.place, exc_info=True)
        finally:
            self.wrote_at, self.writing = time.time(), False

    def _perform(self, batch: Sequence[WorkItem[Any]]) -> None:
        together = [piece for piece in batch if piece.transaction]
        apart = [piece for piece in batch if not piece.transaction]
        if together and not self._attempt(together, careful=False):
            for piece in together:
                if piece.wanted:
                    self._attempt([piece], careful=True)
        for piece in apart:
            self._at_work.pieces = [piece]
            try:
                piece.answer = piece.run(self.writer())
            except BaseException as error:
                piece.error = self._explained(error)

    def _attempt(self, batch: Sequence[WorkItem[Any]], *, careful: bool) -> bool:
        """Run the batch in one transaction. False: it was undone and must be tried piece by piece, carefully."""
        self._at_work.pieces = batch
        try:
            work = Work(self.writer(), self.driver, self.hints, careful=careful)
            with self._turns:
                self._look_at_mode(work.connection)
                self.writing = True
                self._in_transaction(work, batch)
        except BaseException as error:
            for piece in batch:
                piece.answer, piece.error = None, self._explained(error)
            return len(batch) == 1 and not isinstance(error, RetryRowByRow)
        finally:
            self.wrote_at, self.writing = time.time(), False
        self.tell((), changed=work.changed)  # who reads would read too early before the commit
        return True

    def _in_transaction(self, work: Work, batch: Sequence[WorkItem[Any]]) -> None:
        connection = work.connection
        self.retry_while_busy(connection.rows, "BEGIN IMMEDIATE")
        try:
            for piece in batch:
                if piece.wanted:
                    piece.answer, piece.error = piece.run(work), None
            # nobody can claim before we are done: who wakes up while the disk works is the next to write
            self.tell(work.ready, changed=False)
            # a reader in the way leaves the transaction as it is: only the COMMIT is repeated
            self.retry_while_busy(connection.rows, "COMMIT")
        except BaseException:
            undo(connection)
            raise
        self._checkpoints.committed()

    def writer(self) -> Connection:
        """The writer's connection; only for its thread."""
        connection, new = self._links.get("writer")
        if new:
            self._mode_checked = -MODE_CHECKED_EVERY
            self._turns.close()
            self._turns = FairWriteLock(self.place.beside())
        return connection

    def _prepare(self, connection: Connection) -> None:
        """Another file stands in the place of ours."""
        _log.warning("%s has been replaced while it was in use: going on with what stands there now", self.place)
        for prepare in list(self.prepares.values()):
            prepare(connection)

    @property
    def turns(self) -> FairWriteLock:
        return self._turns

    def _look_at_mode(self, connection: Connection) -> None:
        if time.monotonic() - self._mode_checked > MODE_CHECKED_EVERY:
            self._mode_checked = time.monotonic()
            self.retry_while_busy(self._check_mode, connection)

    def tell(self, ready: Collection[str], *, changed: bool) -> None:
        """Wake whom a commit concerns. Nothing that goes wrong here can undo it."""
        if ready or changed:
            try:
                self._told(ready, changed)
            except Exception:
                _log.exception("a signal was not sent")

    # -- the reader ----------------------------------------------------------------------------------
    def _read_on(self) -> None:
        while (piece := self._reads.get()) is not None:
            if piece.wanted:
                self._at_work.pieces = [piece]
                try:
                    with self._gates[1]:
                        piece.answer = self.retry_while_busy(piece.run, self._links.get("reader")[0])
                except BaseException as error:
                    piece.error = self._explained(error)
                _answer([piece])
                self._at_work.pieces = ()
            del piece
        self._links.close("reader")

    # -- both ----------------------------------------------------------------------------------------
    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, PerdureError):
            return error
        if isinstance(error, self.driver.error):
            return explained(error, self.driver, self.place)
        if isinstance(error, _MISREADINGS):
            return misread(error, self.place)
        return error


def patience(
    driver: Driver, limit: float = BUSY_LIMIT, told_busy: Callable[[bool], bool] = lambda busy: True
) -> Patiently:
    """A way to call until the file is no longer busy, at most for these seconds, and as long as `told_busy` says so."""

    def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
        deadline = 0.0
        while True:
            try:
                answer = call(*arguments)
            except driver.error as error:
                if driver.code(error) not in (BUSY, LOCKED):
                    raise
                deadline = deadline or time.monotonic() + limit
                if time.monotonic() > deadline or not told_busy(True):
                    raise
            else:
                if deadline:
                    told_busy(False)
                return answer
            time.sleep(BUSY_PAUSE)

    return patiently


def undo(connection: Connection) -> None:
    """Roll back whatever is open."""
    if connection.in_transaction():
        connection.rows("ROLLBACK")


def _answer(batch: Sequence[WorkItem[Any]]) -> None:
    """Tell each loop, by one wake-up, what became of its pieces."""
    loops: dict[AbstractEventLoop, list[WorkItem[Any]]] = {}
    for piece in batch:
        loops.setdefault(piece.loop, []).append(piece)
    for loop, pieces in loops.items():
        try:
            loop.call_soon_threadsafe(_hand_over, pieces)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _hand_over(pieces: Sequence[WorkItem[Any]]) -> None:
    for piece in pieces:
        if piece.timer is not None:
            piece.timer.cancel()
        if piece.future.done():
            continue
        if piece.error is None:
            piece.future.set_result(piece.answer)
        else:
            piece.future.set_exception(_raisable(piece.error))


def _raisable(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):
        return StoreError(f"unexpected {error!r}")
    return error
