"""The SQLite store: the door. Each verb is a piece of work for the database's threads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeVar

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
from .claiming.claim import Claimed, promote
from .claiming.claim import claim as claim_jobs
from .connection import process_shared
from .connection.database_file import DatabaseFile
from .connection.driver import Connection, DriverName
from .connection.journal_mode import Journal
from .connection.process_shared import Shared
from .connection.writer import BUSY_LIMIT, Work, Writer
from .database_identity import SqliteIdentity
from .edges import edges
from .edges.resolve_edges import any_unresolved, resolve_edges
from .errors import Misread
from .reading import listing, transfer
from .reading.records import Flawed, lists_of
from .schema import SqliteLedger, load_migrations
from .transaction import SqliteTransaction
from .upkeep import inspection, unreadable, upkeep
from .upkeep.unreadable import sort_out
from .writing.apply import PreparedChanges, apply, missing_parent_of
from .writing.caller_insert import insertion
from .writing.enqueue import PreparedJobs, enqueue
from .writing.holds import check, note, note_started, recover_claim, renew

T = TypeVar("T")
LOOKED_AT = 2_000  # jobs at once, when a value could not be read
_log = logging.getLogger("perdure")


class _Said(NamedTuple):
    """The answer of the writer's thread to an exchange; the records are still texts."""

    verdicts: list[Verdict]
    claimed: Claimed


class SqliteStorage(Storage):
    """One loop's door to a file. The threads and connections behind it are shared by all loops of the process."""

    name = "SQLite"
    chunk = 1_000  # a commit takes as long for these as for half of them
    exchanges_in_flight = 2  # one is written while what the other brought is run
    bulk_chunk = 2_500
    bulk_in_flight = 2  # one is made ready while the other is written
    bulk_yield_seconds = 0.0005
    gives_up_after = BUSY_LIMIT

    def __init__(
        self,
        place: DatabaseFile,
        *,
        driver: DriverName = "sqlite3",
        journal: Journal = "auto",
        clock: Clock | None = None,
        demand: Demand = "normal",
        migrate: bool = True,
        key: str | None = None,
    ) -> None:
        self._place = place
        self.place = str(place)
        self._driver = driver
        self._journal = journal
        self._now = reader(clock)
        self._demand = demand
        self._migrate = migrate
        self._key = key or process_shared.key_of(str(place))
        self._shared: Shared | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._inspected: int | None = None  # the number of the last row that was inspected; None: none was
        self._swept = inspection.FIRST  # and of the last that was looked at for whether anybody can find it
        self._looking = asyncio.Lock()  # for a value that could not be read
        self._looks = 0
        self._look_again_at = self._look_pause = 0.0

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._opened and not self._forked():
                return
            self._place.check()
            if not self._migrate and not self._place.in_memory and not self._place.exists():
                raise StoreError(f"{self._place} does not exist: run `perdure migrate`")
            self._shared = process_shared.take(self._key, self._place, self._driver, self._journal)
            self._opened = True
            try:
                if self._migrate or self._place.in_memory:
                    await self._shared.database.alone(self._prepare)
                else:  # its opener may hold the write lock itself, and the writer may be waiting for that
                    await self._shared.database.read(self._look)
                self._shared.database.prepares[self] = self._prepare
                self._check_durability()
            except BaseException:
                await self._close(flush=False)
                raise

    async def close(self) -> None:
        async with self._opening:
            await self._close()

    async def _close(self, *, flush: bool = True) -> None:
        """`flush`: wait until what was asked for here is done."""
        if not self._opened or self._shared is None:
            return
        self._opened, closing = False, self._shared
        closing.database.prepares.pop(self, None)
        if self._forked():
            return
        if process_shared.give_back(closing):
            try:
                await asyncio.get_running_loop().run_in_executor(None, closing.end)
            except RuntimeError:  # the interpreter is ending and has no executor any more
                closing.end()
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
        placed = _unless_refused(await self._write(lambda work: self._enqueue(work, ready)))
        return ready.results() if placed is None else placed

    def _enqueue(self, work: Work, jobs: PreparedJobs) -> list[EnqueueResult] | QueueAtCapacity | MissingParent | None:
        now = self._now()
        placed = enqueue(work, jobs, now)
        if jobs.needs_plan and any(job.after is not None for job in jobs.all):
            resolve_edges(work, self.chunk, now)
        return placed

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        return insertion(jobs, self._now())

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        return SqliteIdentity(self._place, self._driver)

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        ready = PreparedChanges(changes)
        said = _unless_refused(await self._write(lambda work: self._exchange(work, ready, claim, started)))
        claimed: list[Record] = []
        flawed = False
        for part in said.claimed.rows:
            try:
                claimed += part.records()
            except Flawed:
                flawed = True
                claimed += await self._sorted_out(lists_of(part.numbers))
        if flawed and claim is not None and not claimed:  # all were set aside: there may be others behind them
            again = await self.exchange((), claim)
            return msgspec.structs.replace(again, verdicts=said.verdicts)
        return ExchangeResult(said.verdicts, claimed, *said.claimed[1:])

    async def _sorted_out(self, numbers: Sequence[int]) -> list[Record]:
        """The jobs in these rows that can be read; the others are set aside."""
        return await self._write(lambda work: sort_out(work, numbers, self._now())[0])

    def _exchange(
        self, work: Work, changes: PreparedChanges, claim: Claim | None, started: Sequence[Started]
    ) -> _Said | MissingParent:
        now = self._now()
        refusal = missing_parent_of(work, changes.adds) if changes.adds else None
        if refusal is not None:
            return refusal
        verdicts = apply(work, changes, now)
        note_started(work, started)
        if claim is not None:
            return _Said(verdicts, claim_jobs(work, claim, now, self.chunk))
        unresolved = any_unresolved(work)
        if unresolved:
            resolve_edges(work, self.chunk, now)
            unresolved = any_unresolved(work)
        return _Said(verdicts, Claimed([], None, False, unresolved))

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        return await self._write(lambda work: self._renew(work, holds, started, lease))

    def _renew(self, work: Work, holds: Sequence[Hold], started: Sequence[Started], lease: int | None) -> list[Verdict]:
        note_started(work, started)
        return renew(work, holds, lease, self._now())

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._read(lambda connection: check(connection, holds))

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        records, unread = await self._read(lambda connection: recover_claim(connection, worker, stamp))
        return await self._sorted_out(unread) if unread else records

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
        return await self._read(lambda connection: kv.look_up(connection, kind, names, job, due_by, limit))

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        return _unless_refused(await self._write(lambda work: self._kv_write(work, writes)))

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
        return await self._write(lambda work: upkeep.lapsed(work, limit, contact, self._now()))

    async def next_lapse(self) -> int | None:
        return await self._read(lambda connection: upkeep.next_lapse(connection, self._now()))

    async def expired(self, limit: int) -> list[Record]:
        records, unread = await self._read(lambda connection: upkeep.expired(connection, limit, self._now()))
        return await self._sorted_out(unread) if unread else records

    async def prune(self, limit: int) -> int:
        return await self._write(lambda work: upkeep.prune(work, limit, self._now()))

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        now, database = self._now(), self._database()
        if self._inspected is None:
            self._inspected = self._swept = await database.read(inspection.random_start)
        look = partial(inspection.flawed_after, number=self._inspected, limit=limit, now=now, live=False)
        flawed, self._inspected = await database.read(look)
        silent, strays, self._swept = await database.read(partial(inspection.sweep, number=self._swept))
        found = await self._inspect(list(dict.fromkeys([*flawed, *silent])), now)
        if strays:
            found += await database.write(lambda work: inspection.remove_stray_bodies(work, strays, now))
        return found

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await self._read(lambda connection: unreadable.kept(connection, ids, limit))

    async def _inspect(self, numbers: Sequence[int], now: int) -> int:
        """Sort out these jobs and the tables beside them; gives how many rows were set aside or put right."""
        database = self._database()
        found = 0
        if await database.read(lambda connection: inspection.any_flawed(connection, now)):
            found += await database.write(lambda work: inspection.inspect_tables(work, now))
        if numbers:
            found += await database.write(lambda work: inspection.inspect_jobs(work, numbers, now))
        return found

    async def _find_cause(self) -> bool:
        """A value could not be read: look for it in what waits, runs and is configured, then in all jobs, for a moment.
        Whether something was found. Many callers may ask at once: one of them looks."""
        looks = self._looks
        async with self._looking:
            if self._looks != looks:
                return True
            if monotonic() < self._look_again_at:
                return False
            found = await self._look_for_cause()
            if found:
                self._looks += 1
                self._look_pause = 0.0
            else:
                self._look_pause = min(max(1.0, 2 * self._look_pause), 60.0)
                self._look_again_at = monotonic() + self._look_pause
            return found

    async def _look_for_cause(self) -> bool:
        now, until = self._now(), monotonic() + 5.0
        for live in (True, False):
            cursor, more = inspection.FIRST, True
            while more and monotonic() < until:
                look = partial(inspection.flawed_after, number=cursor, limit=LOOKED_AT, now=now, live=live)
                flawed, cursor = await self._database().read(look)
                more = cursor != inspection.FIRST
                if await self._inspect(flawed, now):
                    return True
        return False

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda connection: listing.get(connection, ids, self._now()))

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        patiently, now = self._database().retry_while_busy, self._now()
        return await self._read(lambda connection: listing.find(connection, patiently, filter, limit, after, now))

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
        await self._write(lambda work: listing.beat(work, worker, self._now()))

    async def remove_worker(self, worker: str) -> None:
        await self._write(lambda work: listing.leave(work, worker))

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await self._write(lambda work: listing.workers(work, seen_within, self._now()))

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        return await self._read(lambda connection: transfer.export(connection, after, limit, self._now()))

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        if jobs:
            transfer.refused(await self._write(lambda work: transfer.restore(work, jobs)))

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
            await self._database().alone(lambda _: signals.tell(set(queues), False))
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
            if not await self._find_cause():
                raise
        return await self._database().write(run)

    async def _read(self, run: Callable[[Connection], T]) -> T:
        try:
            return await self._database().read(run)
        except Misread:
            if not await self._find_cause():
                raise
        return await self._database().read(run)

    def _database(self) -> Writer:
        return self._in_use().database

    def _in_use(self) -> Shared:
        if self._shared is None or not self._opened:
            raise StoreError(f"the store {self._place} is not open")
        refuse_after_fork(self._shared.process, self._place)
        return self._shared

    def _forked(self) -> bool:
        return self._shared is not None and self._shared.process != os.getpid()

    def _prepare(self, connection: Connection) -> None:
        database = self._database()
        ledger = SqliteLedger(connection, self._place, database.retry_while_busy)
        known = load_migrations()
        if not self._migrate and not self._place.in_memory:
            migrations.check(ledger, known)
        else:
            migrations.status(ledger, known)  # a file that is not ours is left as it is
        database.retry_while_busy(self._in_use().keeper.check, connection)
        migrations.up(ledger, known)

    def _look(self, connection: Connection) -> None:
        """Check the tables and the journal without writing."""
        database = self._database()
        migrations.check(SqliteLedger(connection, self._place, database.retry_while_busy), load_migrations())
        self._in_use().keeper.look(connection)

    def _check_durability(self) -> None:
        """Refuse or warn when an acknowledged job would not be safe. A database in memory says so by its URL."""
        found = self._in_use().keeper.durability()
        if not self._place.in_memory:
            check_durability(found, self._demand, self._place)


def _unless_refused(answer: T | QueueAtCapacity | MissingParent) -> T:
    """Refusals come from the writer's thread as answers, because nothing had been written."""
    if isinstance(answer, (QueueAtCapacity, MissingParent)):
        raise answer
    return answer
