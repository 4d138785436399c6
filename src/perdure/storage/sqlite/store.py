"""The SQLite store: the door. Each verb is a piece of work for the database's threads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

from perdure.clock import Clock, reader
from perdure.errors import StoreError, StoreMisconfigured
from perdure.job import Hold, NewJob, Record
from perdure.lifecycle import Change
from perdure.storage import migrate
from perdure.storage.contract import (
    CHUNK,
    Carried,
    Claim,
    Durability,
    Exchanged,
    Filter,
    Full,
    Insertion,
    KeptKey,
    Note,
    Orphan,
    Placed,
    QueueRow,
    QueueSettings,
    Shelved,
    Shelving,
    Started,
    Storage,
    StoreTransaction,
    Topic,
    Verdict,
    WorkerRow,
    one_change_each,
)
from perdure.storage.filtering import parse_cursor
from perdure.storage.home import Home

from . import carry, edges, listing, shared, shelf, upkeep
from .apply import HOLDING, Changes, apply, check, note, note_started, orphan_among, renew
from .claim import Claimed, promote
from .claim import claim as claim_jobs
from .database import BUSY_LIMIT, Database, Work
from .driver import Connection, DriverName
from .enqueue import Jobs, enqueue
from .home import SqliteHome
from .insertion import insertion
from .journal import Journal
from .near import Numbers
from .place import Place
from .rows import records_of
from .schema import SqliteLedger, migrations
from .settle import any_unsettled, settle
from .shared import Shared
from .transaction import SqliteTransaction

T = TypeVar("T")
Demand = Literal["full", "normal", "relaxed"]
_log = logging.getLogger("perdure")


class _Said(NamedTuple):
    """The answer of the writer's thread to an exchange; the records are still texts."""

    verdicts: list[Verdict]
    claimed: Claimed


class SqliteStorage(Storage):
    """One loop's door to a file. The threads and connections behind it are shared by all loops of the process."""

    name = "SQLite"
    chunk = 1_000  # a commit takes as long for these as for half of them
    in_flight = 2  # one is written while what the other brought is run
    list_chunk = 2_500
    lists_ahead = 2  # one is made ready while the other is written
    head_start = 0.0005
    gives_up_after = BUSY_LIMIT

    def __init__(
        self,
        place: Place,
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
        self._key = key or shared.key_of(str(place))
        self._shared: Shared | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._numbers = Numbers()

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._opened and not self._forked():
                return
            self._place.check()
            if not self._migrate and not self._place.in_memory and not self._place.exists():
                raise StoreError(f"{self._place} does not exist: run `perdure migrate`")
            self._shared = shared.take(self._key, self._place, self._driver, self._journal)
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
        if shared.give_back(closing):
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
        await database.alone(lambda connection: database.patiently(keeper.check, connection))
        return keeper.durability()

    async def now(self) -> int:
        return self._now()

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Placed]:
        ready = Jobs(jobs)
        placed = _unless_refused(await self._write(lambda work: self._enqueue(work, ready)))
        return ready.placed() if placed is None else placed

    def _enqueue(self, work: Work, jobs: Jobs) -> list[Placed] | Full | Orphan | None:
        now = self._now()
        placed = enqueue(work, jobs, now)
        if not jobs.plain and any(job.after is not None for job in jobs.all):
            settle(work, self.chunk, now)
        return placed

    def insertion(self, jobs: Sequence[NewJob]) -> Insertion:
        return insertion(jobs, self._now())

    async def home(self, *, fresh: bool = False) -> Home:
        return SqliteHome(self._place, self._driver)

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> Exchanged:
        one_change_each(changes)
        ready = Changes(changes, self._numbers)
        said = _unless_refused(await self._write(lambda work: self._exchange(work, ready, claim, started)))
        return Exchanged(said.verdicts, said.claimed.records(self._numbers), *said.claimed[1:])

    def _exchange(
        self, work: Work, changes: Changes, claim: Claim | None, started: Sequence[Started]
    ) -> _Said | Orphan:
        now = self._now()
        orphan = orphan_among(work, changes.adds) if changes.adds else None
        if orphan is not None:
            return orphan
        verdicts = apply(work, changes, now)
        note_started(work, started)
        if claim is not None:
            return _Said(verdicts, claim_jobs(work, claim, now, self.chunk))
        unsettled = any_unsettled(work)
        if unsettled:
            settle(work, self.chunk, now)
            unsettled = any_unsettled(work)
        return _Said(verdicts, Claimed([], None, False, unsettled))

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        return await self._write(lambda work: self._renew(work, holds, started, lease))

    def _renew(self, work: Work, holds: Sequence[Hold], started: Sequence[Started], lease: int | None) -> list[Verdict]:
        note_started(work, started)
        return renew(work, holds, lease, self._now())

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._read(lambda connection: check(connection, holds))

    async def holding(self, worker: str, stamp: int) -> list[Record]:
        held_by = {"worker": worker, "stamp": stamp}
        return await self._read(lambda connection: records_of(connection.value(HOLDING, held_by)))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        return await self._write(lambda work: note(work, notes))

    # -- edges ---------------------------------------------------------------------------------------
    async def settle(self, limit: int) -> int:
        return await self._write(lambda work: settle(work, limit, self._now()))

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._read(lambda connection: edges.followers(connection, ids))

    # -- the shelf -----------------------------------------------------------------------------------
    async def shelf(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        job: str | None = None,
        due: bool = False,
        limit: int = CHUNK,
    ) -> list[Shelved]:
        due_by = self._now() if due else None
        return await self._read(lambda connection: shelf.look_up(connection, kind, names, job, due_by, limit))

    async def shelve(self, writes: Sequence[Shelving]) -> list[bool]:
        return _unless_refused(await self._write(lambda work: self._shelve(work, writes)))

    def _shelve(self, work: Work, writes: Sequence[Shelving]) -> list[bool] | Full | Orphan:
        now = self._now()
        done = shelf.shelve(work, writes, now)
        if any(job.after is not None for write in writes for job in write.jobs):
            settle(work, self.chunk, now)
        return done

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        return await self._write(lambda work: promote(work, limit, self._now()))

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        return await self._write(lambda work: upkeep.lapsed(work, limit, contact, self._now()))

    async def next_lapse(self) -> int | None:
        return await self._read(lambda connection: upkeep.next_lapse(connection, self._now()))

    async def expired(self, limit: int) -> list[Record]:
        return await self._read(lambda connection: upkeep.expired(connection, limit, self._now()))

    async def prune(self, limit: int) -> int:
        return await self._write(lambda work: upkeep.prune(work, limit, self._now()))

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda connection: listing.get(connection, ids))

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        patiently = self._database().patiently
        return await self._read(lambda connection: listing.find(connection, patiently, filter, limit, after))

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

    async def beat(self, worker: WorkerRow) -> None:
        await self._write(lambda work: listing.beat(work, worker, self._now()))

    async def leave(self, worker: str) -> None:
        await self._write(lambda work: listing.leave(work, worker))

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await self._write(lambda work: listing.workers(work, seen_within, self._now()))

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[Carried]:
        return await self._read(lambda connection: carry.export(connection, after, limit))

    async def restore(self, jobs: Sequence[Carried]) -> None:
        if jobs:
            carry.refused(await self._write(lambda work: carry.restore(work, jobs)))

    async def export_shelf(self, after: tuple[str, str] | None, limit: int) -> list[Shelved]:
        return await self._read(lambda connection: shelf.page(connection, after, limit))

    async def restore_shelf(self, rows: Sequence[Shelved]) -> None:
        await self._write(lambda work: shelf.put(work, rows))

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await self._read(lambda connection: carry.export_keys(connection, cursor, limit))

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await self._write(lambda work: carry.restore_keys(work, keys))

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
    async def begin(self, longest: int) -> StoreTransaction:
        transaction = SqliteTransaction(self._in_use(), longest, self._now)
        await transaction.begin()
        return transaction

    # -- below ---------------------------------------------------------------------------------------
    async def _write(self, run: Callable[[Work], T]) -> T:
        return await self._database().write(run)

    async def _read(self, run: Callable[[Connection], T]) -> T:
        return await self._database().read(run)

    def _database(self) -> Database:
        return self._in_use().database

    def _in_use(self) -> Shared:
        if self._shared is None or not self._opened:
            raise StoreError(f"the store {self._place} is not open")
        if self._forked():
            raise StoreError(f"the store {self._place} was opened before this process was forked: open it again here")
        return self._shared

    def _forked(self) -> bool:
        return self._shared is not None and self._shared.process != os.getpid()

    def _prepare(self, connection: Connection) -> None:
        database = self._database()
        ledger = SqliteLedger(connection, self._place, database.patiently)
        known = migrations()
        if not self._migrate and not self._place.in_memory:
            migrate.check(ledger, known)
        else:
            migrate.status(ledger, known)  # a file that is not ours is left as it is
        database.patiently(self._in_use().keeper.check, connection)
        migrate.up(ledger, known)

    def _look(self, connection: Connection) -> None:
        """Check the tables and the journal without writing."""
        database = self._database()
        migrate.check(SqliteLedger(connection, self._place, database.patiently), migrations())
        self._in_use().keeper.look(connection)

    def _check_durability(self) -> None:
        """Refuse or warn when an acknowledged job would not be safe. A database in memory says so by its URL."""
        found = self._in_use().keeper.durability()
        if self._place.in_memory or found.grade in "AB" or self._demand == "relaxed":
            return
        told = f"{self._place}: durability {found.grade}: {found.detail}; {found.remedy}"
        if self._demand == "full":
            raise StoreMisconfigured(f'durability="full" refused: {told}')
        _log.warning("%s", told)


def _unless_refused(answer: T | Full | Orphan) -> T:
    """Refusals come from the writer's thread as answers, because nothing had been written."""
    if isinstance(answer, (Full, Orphan)):
        raise answer
    return answer
