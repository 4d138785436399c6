"""The verbs of the MongoDB store. Each runs a generator of operations, in a transaction or as a plain read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import InvalidCall, StoreError
from perdure.storage.contract import (
    CHUNK,
    CallerStatements,
    Claim,
    Durability,
    EnqueueResult,
    ExchangeResult,
    Filter,
    Finding,
    JobDump,
    KeptKey,
    KvEntry,
    KvWrite,
    Note,
    QueueRow,
    QueueSettings,
    Started,
    StoreTransaction,
    Topic,
    Unreadable,
    Verdict,
    WorkerRow,
    refuse_two_changes_of_one_job,
)
from perdure.storage.rules import fast_path
from perdure.storage.rules.filters import parse_cursor

from . import kv
from .claiming.claim import promote
from .connection import health
from .connection.errors import Conflict, is_duplicate
from .connection.operations import Steps, insert
from .connection.server_transactions import wait_for_earlier_transactions
from .edges import edges
from .edges.resolve_edges import edge_resolutions, resolve_listed_edges
from .lifetime import MongoLifetime
from .reading import listing, queues, transfer
from .transaction import MongoTransaction
from .upkeep import inspection, unreadable, upkeep
from .writing.apply import answer_if_noted, check, find_held, note, renew_and_write_starts
from .writing.caller_insert import SessionEnqueue
from .writing.enqueue import Enqueued, enqueue

T = TypeVar("T")
_log = logging.getLogger("perdure")
RENEW_RETRY_FOR = 0.2  # seconds; a lease is renewed long before it is over, and the next renewal comes


class MongoStorage(MongoLifetime):
    """The verbs of one event loop's store."""

    async def durability(self) -> Durability:
        server = self._in_use()
        return await health.durability(server, await server.hello())

    def open_transactions(self) -> frozenset[str]:
        return frozenset() if self._server is None else frozenset(self._server.sessions)

    async def abort_transactions(self, left: Collection[str]) -> None:
        async with self._work() as server:
            await server.end_sessions(left)

    async def diagnose(self) -> list[Finding]:
        async with self._work() as server:
            return await health.findings(server, await server.hello(), self._now())

    async def now(self) -> int:
        async with self._work():
            return self._now()

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if not jobs:
            return []
        try:
            return await self._enqueue(jobs, boldly=fast_path.enabled())
        except StoreError as error:
            if error.__cause__ is None or not is_duplicate(error.__cause__):
                raise
            return await self._enqueue(jobs, boldly=False)

    async def _enqueue(self, jobs: Sequence[NewJob], *, boldly: bool) -> list[EnqueueResult]:
        resolutions = edge_resolutions()

        def steps() -> Steps[tuple[Enqueued, bool]]:
            done = yield from enqueue(jobs, self._now(), self.chunk, next(resolutions), boldly=boldly)
            signal = self._signals.inside(done.ready, done.changed)
            yield from insert("signals", signal)
            return done, bool(signal)

        done, outcome = await self._write(steps)
        if outcome:
            self._signals.note_sent_inside(done.ready, done.changed)
        else:
            self._signals.tell(done.ready, done.changed)
        await self._afterwards.resolve(done.left)
        await self._afterwards.make_edges(done.unmade)
        return done.placed

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        raise StoreError("MongoDB has no SQL: give connection= a ClientSession of pymongo that is in a transaction")

    def caller_session(self, jobs: Sequence[NewJob]) -> SessionEnqueue:
        self._in_use()
        return SessionEnqueue(jobs, self._address, self._identity, self._now)

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        started = self._free(started)
        outcome = await self._exchanges.take(changes, claim, started)
        if outcome.inside:
            self._signals.note_sent_inside(outcome.ready, outcome.changed)
        else:
            self._signals.tell(outcome.ready, outcome.changed)
        await self._afterwards.resolve(outcome.left)
        return outcome.exchanged

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        """A job that is pinned by its handler's transaction is held: it is looked at and left as it is."""
        free = [hold for hold in holds if hold.id not in self._pinned]
        answers = dict(zip(free, await self._renew(free, self._free(started), lease), strict=True))
        pinned = [hold for hold in holds if hold not in answers]
        if pinned:
            answers |= zip(pinned, await self.check(pinned), strict=True)
        return [answers[hold] for hold in holds]

    async def _renew(self, holds: Sequence[Hold], started: Sequence[Started], lease: int | None) -> list[Verdict]:
        """All at once; if one of them is pinned by another process, half by half, so that it stalls nobody else."""
        if not holds and not started:
            return []
        try:
            return await self._write(
                lambda: renew_and_write_starts(holds, started, lease, self._now()), retry_for=RENEW_RETRY_FOR
            )
        except Conflict:
            pass
        if len(holds) <= 1:
            return await self.check(holds)
        middle = len(holds) // 2
        first = await self._renew(holds[:middle], [], lease)
        return first + await self._renew(holds[middle:], [], lease)

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._read(lambda: check(holds))

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        return await self._read_then_write(lambda: find_held(worker, stamp, self._now()))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        if any(note.hold.id in self._pinned for note in notes):
            raise StoreError("inside ctx.transaction() a job's progress and log cannot be written: tell them before it")
        verdicts, changed = await self._write(lambda: note(notes), read_back=lambda: answer_if_noted(notes))
        self._signals.tell((), changed)
        return verdicts

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        followed = await self._read_then_write(lambda: resolve_listed_edges(limit, self._now()))
        self._signals.tell(followed.ready, followed.changed)
        return followed.looked

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._read(lambda: edges.find_followers(ids))

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
        return await self._read(lambda: kv.read(kind, names, job, self._now() if due else None, limit))

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        resolutions = edge_resolutions()

        done, enqueued = await self._write(
            lambda: kv.write(writes, self._pinned, self._now(), self.chunk, next(resolutions)),
            read_back=lambda: kv.answer_if_written(writes),
        )
        self._signals.tell(enqueued.ready, enqueued.changed)
        await self._afterwards.resolve(enqueued.left)
        await self._afterwards.make_edges(enqueued.unmade)
        return done

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        promoted = await self._read_then_write(lambda: promote(limit, self._now()))
        self._signals.tell({record.queue for record in promoted}, False)
        return len(promoted)

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        return await self._read_then_write(lambda: upkeep.find_lapsed(limit, contact, self._now()))

    async def next_lapse(self) -> int | None:
        return await self._read(lambda: upkeep.next_lapse(self._now()))

    async def expired(self, limit: int) -> list[Record]:
        return await self._read_then_write(lambda: upkeep.find_expired(limit, self._now()))

    async def prune(self, limit: int) -> int:
        small = await self._in_use().jobs() < upkeep.SMALL
        return await self._write(lambda: upkeep.prune(limit, self._now(), small=small))

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        number = 0
        for _ in range(inspection.PAGES):
            found, self._inspected = await self._write(lambda: inspection.inspect(limit, self._inspected, self._now()))
            number += found
            if not self._inspected["jobs"]:  # all jobs were looked at
                break
        return number

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await self._read(lambda: unreadable.list_unreadable(ids, limit))

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(lambda: listing.get(ids, self._now()))

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after = parse_cursor(cursor)
        take = self._write if listing.only_running(filter) else self._read
        return await take(lambda: listing.page(filter, limit, after, self._now()))

    async def count(self, filter: Filter) -> int:
        take = self._write if listing.only_running(filter) else self._read
        return await take(lambda: listing.count(filter))

    async def log(self, id: str) -> list[str]:
        return await self._read(lambda: queues.log(id))

    async def queues(self) -> list[QueueRow]:
        return await self._read(lambda: queues.queues(self._now()))

    async def configure(self, settings: QueueSettings) -> None:
        await self._write(lambda: queues.configure(settings))

    async def pause(self, queue: str, paused: bool) -> None:
        await self._write(lambda: queues.pause(queue, paused))
        if paused:
            async with self._work() as server:
                await wait_for_earlier_transactions(server)
        else:
            self._signals.tell((queue,), False)

    async def heartbeat(self, worker: WorkerRow) -> None:
        async with self._work() as server:
            await server.replace("workers", worker.id, queues.heartbeat_document(worker, self._now()))

    async def remove_worker(self, worker: str) -> None:
        await self._write(lambda: queues.leave(worker))

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await self._write(lambda: queues.workers(seen_within, self._now()))

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        return await self._read(lambda: transfer.export(after, limit, self._now()))

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        try:
            done = await self._write(lambda: transfer.restore(jobs))
        except InvalidCall as error:
            raise transfer.too_large(jobs, error) from error
        if done.unmade:
            await self._afterwards.restore_edges(jobs)
        self._signals.tell(done.ready, done.changed)

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await self._read(lambda: transfer.export_keys(cursor, limit))

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await self._write(lambda: transfer.restore_keys(keys))

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return await self._read(lambda: kv.export(after, limit))

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        await self._write(lambda: kv.restore(rows))

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        try:
            self._in_use()
            self._signals.tell(set(queues), False)
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        self._in_use()
        return self._signals.listen(topic, wake, queues)

    # -- the handler's own transaction ---------------------------------------------------------------
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        return await self._begin(longest, None)

    async def begin_for(self, hold: Hold, longest: int) -> StoreTransaction:
        return await self._begin(longest, hold)

    async def _begin(self, longest: int, hold: Hold | None) -> StoreTransaction:
        transaction = MongoTransaction(
            self._in_use(), longest, self._now, self._signals.tell, self._afterwards.resolve, self._pinned
        )
        await transaction.begin(hold)
        return transaction

    def _free(self, started: Sequence[Started]) -> list[Started]:
        """Without those that are pinned here: their transactions note it."""
        return [note for note in started if note.hold.id not in self._pinned]
