"""The memory store: the specification of all stores, and the store of unit tests.

All event loops and threads of an app share one object. Every verb does its work at once under one lock, so each is one
transaction, and it returns copies. The rules are in `rows`; this file has the verbs of the contract.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import msgspec

from perdure.core.clock import Clock, reader
from perdure.core.job import State
from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import StoreError
from perdure.storage.contract import (
    ACCEPTED,
    CHUNK,
    LOG_LINES,
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
from perdure.storage.rules.filters import cursor_of, fits, parse_cursor
from perdure.storage.rules.records import refuse_missing_parents, renew_lease
from perdure.storage.rules.unreadable import FIELDS, flaw_of, mark
from perdure.storage.wakeups import Listener

from .rows import Rows
from .transaction import Database, MemoryTransaction

__all__ = ["MemoryStorage"]


class MemoryStorage(Storage):
    """Keeps everything in this process, and nothing beyond it."""

    name = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._micros = reader(clock)
        self._lock = threading.Lock()
        self._rows = Rows()
        self._log: dict[str, list[str]] = {}
        self._workers: dict[str, WorkerRow] = {}
        self._listeners: list[Listener] = []
        self._database = Database()

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass  # the store belongs to all loops of its app; it ends with the object

    async def durability(self) -> Durability:
        return Durability("D", "jobs live in the memory of this process", "use a store on disk, e.g. sqlite:///jobs.db")

    async def now(self) -> int:
        return self._micros()

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        with self._work() as (rows, now):
            placed = rows.enqueue(jobs, now)
            rows.resolve_edges(self.chunk, now)
        return placed

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        raise StoreError("the memory store has no SQL: a job cannot be enqueued in a connection's own transaction")

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        with self._work() as (rows, now):
            refuse_missing_parents([job for change in changes for job in change.adds], rows.by_id)
            verdicts = [_apply(rows, change, now) for change in changes]
            rows.note_started(started)
            rows.resolve_edges(self.chunk, now)
            unresolved = bool(rows.edges.unresolved)
            if claim is None:
                return ExchangeResult(verdicts, unresolved=unresolved)
            rows.promote(self.chunk, now)
            claimed = rows.claim(claim, now)
            due = [at for at in (rows.next_due(), rows.gates_open_at(claim.wants, now)) if at is not None]
            next_due = max(0, min(due) - now) if due else None
            return ExchangeResult(verdicts, claimed, next_due, rows.any_suspect(claim.wants, now), unresolved)

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        with self._work() as (rows, now):
            rows.note_started(started)
            return [_renew(rows.held_record(hold), now, lease) for hold in holds]

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        with self._work() as (rows, _):
            found = [rows.held_record(hold) for hold in holds]
            return [each if isinstance(each, Verdict) else ACCEPTED for each in found]

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        with self._work() as (rows, now):
            held = [row for row in rows.held() if row.state is State.RUNNING]
            ours = rows.readable([row for row in held if row.leased_by == worker and row.stamp == stamp], now)
            return _copies(sorted(ours, key=lambda row: (-row.priority, row.rank, row.id)))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        with self._work() as (rows, _):
            return [self._note(rows, note) for note in notes]

    def _note(self, rows: Rows, note: Note) -> Verdict:
        record = rows.held_record(note.hold)
        if isinstance(record, Verdict):
            return record
        if note.progress is not None:
            record.progress = note.progress
            rows.changed = True
        if note.lines:
            self._log[record.id] = [*self._log.get(record.id, ()), *note.lines][-LOG_LINES:]
        return ACCEPTED

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        with self._work() as (rows, now):
            return rows.resolve_edges(limit, now)

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        with self._work() as (rows, _):
            return [rows.edges.children(id) for id in ids]

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
        with self._work() as (rows, now):
            return rows.kv.read(kind, names, job, now if due else None, limit)

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        with self._work() as (rows, now):
            done, table = rows.try_kv_writes(writes)
            rows.enqueue([job for write, holds in zip(writes, done, strict=True) if holds for job in write.jobs], now)
            rows.kv = table
            rows.resolve_edges(self.chunk, now)
            return done

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        with self._work() as (rows, now):
            return rows.promote(limit, now)

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        with self._work() as (rows, now):
            leases = []
            for row in rows.held():
                row.leased_until = min(row.leased_until or now, now + row.lease)
                if row.leased_until <= now and row.lease <= 3 * contact:
                    leases.append((row.leased_until, row.id, row))
            return _copies(rows.readable([row for _, _, row in sorted(leases, key=lambda each: each[:2])[:limit]], now))

    async def next_lapse(self) -> int | None:
        with self._work() as (rows, now):
            return min(((row.leased_until or now) - now for row in rows.held()), default=None)

    async def expired(self, limit: int) -> list[Record]:
        with self._work() as (rows, now):
            return _copies(rows.readable(rows.expired(now)[:limit], now))

    async def prune(self, limit: int) -> int:
        with self._work() as (rows, now):
            pruned = rows.prune(limit, now)
            if pruned:
                self._log = {id: lines for id, lines in self._log.items() if id in rows.by_id}
            return pruned

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        with self._work() as (rows, now):
            return rows.inspect(limit, now)

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        with self._work() as (rows, _):
            found = sorted(rows.unreadable.values(), key=lambda row: (row.at, row.id))
            return [row for row in found if ids is None or row.id in ids][:limit]

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        with self._work() as (rows, now):
            found = [rows.by_id.get(id) for id in ids]
            return [None if record is None else _copy_for_reader(record, now) for record in found]

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        with self._work() as (rows, now):
            fitting = [row for row in rows.by_id.values() if fits(row, filter)]
            fitting = [row for row in fitting if after is None or (row.created_at, row.id) < after]
            fitting.sort(key=lambda row: (row.created_at, row.id), reverse=True)
            page = [_copy_for_reader(row, now) for row in fitting[:limit]]
        more = len(fitting) > limit
        return page, cursor_of(page[-1]) if more and page else None

    async def count(self, filter: Filter) -> int:
        with self._work() as (rows, _):
            return sum(fits(row, filter) for row in rows.by_id.values())

    async def log(self, id: str) -> list[str]:
        with self._work():
            return list(self._log.get(id, ()))

    async def queues(self) -> list[QueueRow]:
        with self._work() as (rows, now):
            ready = [row for row in rows.by_id.values() if row.state is State.READY]
            names = rows.settings.keys() | {name for name, depth in rows.depth.items() if depth}
            return [_queue_row(rows, name, ready, now) for name in sorted(names)]

    async def configure(self, settings: QueueSettings) -> None:
        with self._work() as (rows, _):
            before = rows.settings.get(settings.name)
            paused = before is not None and before.paused
            rows.settings[settings.name] = msgspec.structs.replace(settings, paused=paused)

    async def pause(self, queue: str, paused: bool) -> None:
        with self._work() as (rows, _):
            settings = rows.settings.get(queue) or QueueSettings(queue)
            rows.settings[queue] = msgspec.structs.replace(settings, paused=paused)
            if not paused:
                rows.woken.add(queue)

    async def heartbeat(self, worker: WorkerRow) -> None:
        with self._work() as (_, now):
            self._workers[worker.id] = msgspec.structs.replace(worker, seen_at=now)

    async def remove_worker(self, worker: str) -> None:
        with self._work():
            self._workers.pop(worker, None)

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        with self._work() as (_, now):
            self._workers = {id: row for id, row in self._workers.items() if row.seen_at >= now - seen_within}
            return [row for _, row in sorted(self._workers.items())]

    # -- transfer ------------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        with self._work() as (rows, now):
            behind = [row for row in rows.by_id.values() if after is None or (row.created_at, row.id) > after]
            behind.sort(key=lambda row: (row.created_at, row.id))
            return [rows.dump(_copy_for_reader(row, now), self._log.get(row.id, ())) for row in behind[:limit]]

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        with self._work() as (rows, _):
            rows.restore(jobs)
            for job in jobs:
                self._log[job.record.id] = list(job.lines)

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        with self._work() as (rows, _):
            return rows.kv.export(after, limit)

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        with self._work() as (ours, _):
            ours.kv.restore(rows)

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        with self._work() as (rows, _):
            behind = [kept for kept in rows.kept_keys() if cursor is None or kept.key > cursor]
        return behind[:limit], behind[limit - 1].key if len(behind) > limit else None

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        with self._work() as (rows, _):
            rows.restore_keys(keys)

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        with self._work() as (rows, _):
            rows.woken.update(queues)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        with self._lock:
            self._listeners.append(listener)
        return listener.stop

    # -- the handler's own transaction ---------------------------------------------------------------
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        connection = await self._database.take()
        return MemoryTransaction(self._database, connection, longest, self._plan, self._commit)

    def _plan(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        with self._work() as (rows, now):
            return rows.plan(jobs, now)[0]

    def _commit(
        self, change: Change, jobs: Sequence[NewJob], promised: Sequence[EnqueueResult], commit: Callable[[], Any]
    ) -> Verdict:
        """The completion, what was enqueued and what was executed, all at once."""
        with self._work() as (rows, now):
            verdict = rows.judge(change, now)
            if not verdict.accepted or verdict.repeated:
                return verdict
            _check_promised(rows, jobs, promised, now)
            commit()
            rows.enqueue(jobs, now)
            rows.write(change, now)
            rows.resolve_edges(self.chunk, now)
            return verdict

    # -- below ---------------------------------------------------------------------------------------
    @contextmanager
    def _work(self) -> Iterator[tuple[Rows, int]]:
        """One transaction: the rows, locked, and the time. Afterwards listeners are notified."""
        with self._lock:
            try:
                yield self._rows, self._micros()
            finally:
                ready, changed = self._rows.woken, self._rows.changed
                self._rows.woken, self._rows.changed = set(), False
                if ready or changed:
                    self._notify(ready, changed)

    def _notify(self, ready: set[str], changed: bool) -> None:
        for listener in self._listeners:
            listener.notify(ready, changed)
        self._listeners = [listener for listener in self._listeners if not listener.stopped]


def _apply(rows: Rows, change: Change, now: int) -> Verdict:
    verdict = rows.judge(change, now)
    if verdict.accepted and not verdict.repeated:
        rows.write(change, now)
    return verdict


def _renew(record: Record | Verdict, now: int, lease: int | None) -> Verdict:
    if isinstance(record, Verdict):
        return record
    record.lease, record.leased_until = renew_lease(record.lease, now, lease)
    return ACCEPTED


def _check_promised(rows: Rows, jobs: Sequence[NewJob], promised: Sequence[EnqueueResult], now: int) -> None:
    """StoreError if these jobs would now get other results than when they were enqueued."""
    try:
        placed, _ = rows.plan(jobs, now)
    except QueueAtCapacity:
        placed = []
    if placed != list(promised):
        raise StoreError("jobs enqueued inside the transaction met others meanwhile (key or depth); run it again")


def _queue_row(rows: Rows, name: str, ready: list[Record], now: int) -> QueueRow:
    waiting = [now - row.run_at for row in ready if row.queue == name]
    oldest = max(0, *waiting) if waiting else None
    return QueueRow(rows.settings.get(name) or QueueSettings(name), rows.depth[name], oldest)


def _copy_for_reader(record: Record, now: int) -> Record:
    """The record for a reader, marked where it cannot be read."""
    if flaw_of(record) is None:
        return copy(record)
    return mark({name: getattr(record, name) for name in FIELDS}, now)


def _copies(records: Iterable[Record]) -> list[Record]:
    return [copy(record) for record in records]
