"""The SQLite store: each verb of the storage contract as a function for the threads of the file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from perdure.core.clock import Clock, reader
from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import StoreError
from perdure.storage import migrations
from perdure.storage.contract import (
    CHUNK,
    CallerStatements,
    Claim,
    Durability,
    EnqueueResult,
    ExchangeResult,
    Filter,
    JobDump,
    KeptKey,
    KvEntry,
    KvWrite,
    MissingParent,
    Note,
    QueueAtCapacity,
    QueueRow,
    QueueSettings,
    Started,
    Storage,
    StoreTransaction,
    Topic,
    Unreadable,
    Verdict,
    WorkerRow,
    refuse_two_changes_of_one_job,
)
from perdure.storage.database_identity import DatabaseIdentity
from perdure.storage.opening import Demand, check_durability, refuse_after_fork
from perdure.storage.rules.filters import parse_cursor

from . import kv
from .claiming.claim import promote
from .connection import process_shared
from .connection.busy import BUSY_LIMIT
from .connection.database_file import DatabaseFile
from .connection.driver import Connection, DriverName
from .connection.journal_mode import Journal
from .connection.process_shared import Shared
from .connection.work import Work
from .connection.writer import Writer
from .database_identity import SqliteIdentity
from .edges import edges
from .edges.resolve_edges import resolve_edges
from .errors import Misread
from .reading import listing, transfer
from .reading.records import Flawed, lists_of
from .schema import SqliteLedger, load_migrations
from .transaction import SqliteTransaction
from .upkeep import unreadable, upkeep
from .upkeep.inspector import Inspector
from .upkeep.unreadable import sort_out
from .writing.apply import PreparedChanges
from .writing.caller_insert import statements_for
from .writing.enqueue import PreparedJobs, enqueue
from .writing.exchange import exchange
from .writing.holds import check, note, recover_claim, renew

T = TypeVar("T")
_log = logging.getLogger("perdure")


class SqliteStorage(Storage):
    """The store of one event loop. All loops of the process share the threads and connections of a file."""

    name = "SQLite"
    chunk = 1_000  # a commit of so many takes as long as one of half as many
    exchanges_in_flight = 2  # one is written while the jobs of the other run
    bulk_chunk = 2_500
    bulk_in_flight = 2  # one is prepared while the other is written
    bulk_yield_seconds = 0.0005
    gives_up_after = BUSY_LIMIT

    def __init__(
        self,
        file: DatabaseFile,
        *,
        driver: DriverName = "sqlite3",
        journal: Journal = "auto",
        clock: Clock | None = None,
        demand: Demand = "normal",
        migrate: bool = True,
        key: str | None = None,
    ) -> None:
        self._file = file
        self.place = str(file)
        self._driver = driver
        self._journal = journal
        self._now = reader(clock)
        self._demand = demand
        self._migrate = migrate
        self._key = key or process_shared.key_of(str(file))
        self._shared: Shared | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._inspector = Inspector(self._database, self._now)

    async def open(self) -> None:
        async with self._opening:
            if self._opened and not self._forked():
                return
            self._file.check()
            if not self._migrate and not self._file.in_memory and not self._file.exists():
                raise StoreError(f"{self._file} does not exist: run `perdure migrate`")
            self._shared = process_shared.acquire(self._key, self._file, self._driver, self._journal)
            self._opened = True
            try:
                if self._migrate or self._file.in_memory:
                    await self._shared.database.alone(self._prepare)
                else:  # the caller may hold the write lock itself, and the writer may be waiting for that
                    await self._shared.database.read(self._check_schema)
                self._shared.database.prepares[self] = self._prepare
                if not self._file.in_memory:
                    check_durability(self._shared.keeper.durability(), self._demand, self._file)
            except BaseException:
                await self._close(flush=False)
                raise

    async def close(self) -> None:
        async with self._opening:
            await self._close()

    async def _close(self, *, flush: bool = True) -> None:
        """`flush`: wait until the calls of this store are done."""
        if not self._opened or self._shared is None:
            return
        self._opened, closing = False, self._shared
        closing.database.prepares.pop(self, None)
        if self._forked():
            return
        if process_shared.release(closing):
            await closing.close()
        elif flush:
            with suppress(StoreError):  # the file is gone
                await closing.database.alone(lambda _: None)

    async def durability(self) -> Durability:
        database = self._database()
        keeper = self._in_use().keeper
        await database.alone(lambda connection: database.retry_while_busy(keeper.check, connection))
        return keeper.durability()

    async def now(self) -> int:
        return self._now()

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        ready = PreparedJobs(jobs)
        results = _raise_refusal(await self._write(lambda work: self._enqueue(work, ready)))
        return ready.results() if results is None else results

    def _enqueue(self, work: Work, jobs: PreparedJobs) -> list[EnqueueResult] | QueueAtCapacity | MissingParent | None:
        now = self._now()
        results = enqueue(work, jobs, now)
        if jobs.needs_plan and any(job.after is not None for job in jobs.all):
            resolve_edges(work, self.chunk, now)
        return results

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        return statements_for(jobs, self._now())

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        return SqliteIdentity(self._file, self._driver)

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        ready = PreparedChanges(changes)
        answer = _raise_refusal(
            await self._write(lambda work: exchange(work, ready, claim, started, self._now(), self.chunk))
        )
        claimed: list[Record] = []
        flawed = False
        for part in answer.claimed.rows:
            try:
                claimed += part.records()
            except Flawed:
                flawed = True
                claimed += await self._sort_out(lists_of(part.numbers))
        if flawed and claim is not None and not claimed:  # all were set aside: there may be more jobs
            again = await self.exchange((), claim)
            return msgspec.structs.replace(again, verdicts=answer.verdicts)
        return ExchangeResult(answer.verdicts, claimed, *answer.claimed[1:])

    async def _sort_out(self, numbers: Sequence[int]) -> list[Record]:
        """The jobs in these rows that can be read; the others are set aside."""
        return await self._write(lambda work: sort_out(work, numbers, self._now())[0])

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        return await self._write(lambda work: renew(work, holds, started, lease, self._now()))

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._read(lambda connection: check(connection, holds))

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        records, unread = await self._read(lambda connection: recover_claim(connection, worker, stamp))
        return await self._sort_out(unread) if unread else records

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        return await self._write(lambda work: note(work, notes, self._now()))

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        return await self._write(lambda work: resolve_edges(work, limit, self._now()))

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._read(lambda connection: edges.followers(connection, ids))

    # -- kv entries ----------------------------------------------------------------------------------
    async def kv_read(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        job: str | None = None,
        due: bool = False,
        limit: int = CHUNK,
    ) -> list[KvEntry]:
        due_by = self._now() if due else None
        return await self._read(lambda connection: kv.read(connection, kind, names, job, due_by, limit))

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        return _raise_refusal(await self._write(lambda work: self._kv_write(work, writes)))

    def _kv_write(self, work: Work, writes: Sequence[KvWrite]) -> list[bool] | QueueAtCapacity | MissingParent:
        now = self._now()
        done = kv.write(work, writes, now)
        if any(job.after is not None for write in writes for job in write.jobs):
            resolve_edges(work, self.chunk, now)
        return done

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        return await self._write(lambda work: promote(work, limit, self._now()))

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        return await self._write(lambda work: upkeep.read_lapsed(work, limit, contact, self._now()))

    async def next_lapse(self) -> int | None:
        return await self._read(lambda connection: upkeep.next_lapse(connection, self._now()))

    async def expired(self, limit: int) -> list[Record]:
        records, unread = await self._read(lambda connection: upkeep.read_expired(connection, limit, self._now()))
        return await self._sort_out(unread) if unread else records

    async def prune(self, limit: int) -> int:
        return await self._write(lambda work: upkeep.prune(work, limit, self._now()))

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        self._database()
        return await self._inspector.inspect(limit)

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await self._read(lambda connection: unreadable.read_kept(connection, ids, limit))

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda connection: listing.get(connection, ids, self._now()))

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        retry, now = self._database().retry_while_busy, self._now()
        return await self._read(lambda connection: listing.find(connection, retry, filter, limit, after, now))

    async def count(self, filter: Filter) -> int:
        return await self._read(lambda connection: listing.count(connection, filter))

    async def log(self, id: str) -> list[str]:
        return await self._read(lambda connection: listing.log(connection, id))

    async def queues(self) -> list[QueueRow]:
        return await self._read(lambda connection: listing.queues(connection, self._now()))

    async def configure(self, settings: QueueSettings) -> None:
        await self._write(lambda work: listing.configure(work, settings))

    async def pause(self, queue: str, paused: bool) -> None:
        await self._write(lambda work: listing.pause(work, queue, paused))

    async def heartbeat(self, worker: WorkerRow) -> None:
        await self._write(lambda work: listing.heartbeat(work, worker, self._now()))

    async def remove_worker(self, worker: str) -> None:
        await self._write(lambda work: listing.remove_worker(work, worker))

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await self._write(lambda work: listing.workers(work, seen_within, self._now()))

    # -- transfers -----------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        return await self._read(lambda connection: transfer.export(connection, after, limit, self._now()))

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        if jobs:
            transfer.raise_refusal(await self._write(lambda work: transfer.restore(work, jobs)))

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return await self._read(lambda connection: kv.page(connection, after, limit))

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        await self._write(lambda work: kv.put(work, rows))

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await self._read(lambda connection: transfer.export_keys(connection, cursor, limit))

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await self._write(lambda work: transfer.restore_keys(work, keys))

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        try:
            signals = self._in_use().signals
            await self._database().alone(lambda _: signals.send(set(queues), False))
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        return self._in_use().signals.listen(topic, wake, queues)

    # -- the handler's own transaction ---------------------------------------------------------------
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        transaction = SqliteTransaction(self._in_use(), longest, self._now)
        await transaction.begin()
        return transaction

    # -- below ---------------------------------------------------------------------------------------
    async def _write(self, run: Callable[[Work], T]) -> T:
        try:
            return await self._database().write(run)
        except Misread:
            if not await self._inspector.find_cause():
                raise
        return await self._database().write(run)

    async def _read(self, run: Callable[[Connection], T]) -> T:
        try:
            return await self._database().read(run)
        except Misread:
            if not await self._inspector.find_cause():
                raise
        return await self._database().read(run)

    def _database(self) -> Writer:
        return self._in_use().database

    def _in_use(self) -> Shared:
        if self._shared is None or not self._opened:
            raise StoreError(f"the store {self._file} is not open")
        refuse_after_fork(self._shared.process, self._file)
        return self._shared

    def _forked(self) -> bool:
        return self._shared is not None and self._shared.process != os.getpid()

    def _prepare(self, connection: Connection) -> None:
        """Bring the tables and the journal of a file into their state."""
        retry, keeper = self._database().retry_while_busy, self._in_use().keeper
        ledger = SqliteLedger(connection, self._file, retry)
        if self._migrate or self._file.in_memory:
            migrations.status(ledger, load_migrations())  # a file that is not ours is left as it is
        else:
            migrations.check(ledger, load_migrations())
        retry(keeper.check, connection)
        migrations.up(ledger, load_migrations())

    def _check_schema(self, connection: Connection) -> None:
        """Check the tables and the journal without writing."""
        migrations.check(SqliteLedger(connection, self._file, self._database().retry_while_busy), load_migrations())
        self._in_use().keeper.read_mode(connection)


def _raise_refusal(answer: T | QueueAtCapacity | MissingParent) -> T:
    """Raise a refusal, which the writer's thread returns because nothing was written."""
    if isinstance(answer, (QueueAtCapacity, MissingParent)):
        raise answer
    return answer
