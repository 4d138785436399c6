"""The SQLite store: the door. Each verb is a piece of work for the database's threads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Literal, NamedTuple, TypeVar

import msgspec

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
    Unreadable,
    Verdict,
    WorkerRow,
    one_change_each,
)
from perdure.storage.filtering import parse_cursor
from perdure.storage.home import Home

from . import carry, edges, inspection, listing, shared, shelf, unreadable, upkeep
from .apply import Changes, apply, check, holding, note, note_started, orphan_among, renew
from .claim import Claimed, promote
from .claim import claim as claim_jobs
from .database import BUSY_LIMIT, Database, Work
from .driver import Connection, DriverName
from .enqueue import Jobs, enqueue
from .faults import Misread
from .home import SqliteHome
from .insertion import insertion
from .journal import Journal
from .near import Numbers
from .place import Place
from .rows import Flawed, lists_of
from .schema import SqliteLedger, migrations
from .settle import any_unsettled, settle
from .shared import Shared
from .transaction import SqliteTransaction
from .unreadable import sort_out

T = TypeVar("T")
Demand = Literal["full", "normal", "relaxed"]
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
        self._inspected = -1  # the number of the last row
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
        claimed: list[Record] = []
        flawed = False
        for part in said.claimed.parts:
            try:
                claimed += part.records(self._numbers)
            except Flawed:
                flawed = True
                claimed += await self._sorted_out(lists_of(part.numbers))
        if flawed and claim is not None and not claimed:  # all were set aside: there may be others behind them
            again = await self.exchange((), claim)
            return msgspec.structs.replace(again, verdicts=said.verdicts)
        return Exchanged(said.verdicts, claimed, *said.claimed[1:])

    async def _sorted_out(self, numbers: Sequence[int]) -> list[Record]:
        """The jobs in these rows that can be read; the others are set aside."""
        return await self._write(lambda work: sort_out(work, numbers, self._now())[0])

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
        records, unread = await self._read(lambda connection: holding(connection, worker, stamp))
        return await self._sorted_out(unread) if unread else records

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        return await self._write(lambda work: note(work, notes, self._now()))

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
        records, unread = await self._read(lambda connection: upkeep.expired(connection, limit, self._now()))
        return await self._sorted_out(unread) if unread else records

    async def prune(self, limit: int) -> int:
        return await self._write(lambda work: upkeep.prune(work, limit, self._now()))

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        now = self._now()
        cursor = self._inspected
        flawed, self._inspected = await self._database().read(
            lambda connection: inspection.flawed_after(connection, cursor, limit, now, live=False)
        )
        return await self._inspect(flawed, now)

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
            cursor = -(1 << 63)
            while cursor != -1 and monotonic() < until:
                look = partial(inspection.flawed_after, number=cursor, limit=LOOKED_AT, now=now, live=live)
                flawed, cursor = await self._database().read(look)
                if await self._inspect(flawed, now):
                    return True
        return False

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda connection: listing.get(connection, ids, self._now()))

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        patiently, now = self._database().patiently, self._now()
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

    async def beat(self, worker: WorkerRow) -> None:
        await self._write(lambda work: listing.beat(work, worker, self._now()))

    async def leave(self, worker: str) -> None:
        await self._write(lambda work: listing.leave(work, worker))

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await self._write(lambda work: listing.workers(work, seen_within, self._now()))

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[Carried]:
        return await self._read(lambda connection: carry.export(connection, after, limit, self._now()))

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
