"""The store on Redis and Valkey: the door. Each verb is one script, which the server runs whole."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.core.clock import SECOND, Clock, reader
from perdure.core.lifecycle import Change
from perdure.core.log_limit import is_new
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import StoreError
from perdure.storage.contract import (
    ACCEPTED,
    CHUNK,
    LOG_LINES,
    REFUSED,
    REPEATED,
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
    MissingParent,
    Note,
    QueueAtCapacity,
    QueueCapacity,
    QueueRow,
    QueueSettings,
    Refusal,
    Started,
    Storage,
    StoreTransaction,
    Topic,
    Unreadable,
    Verdict,
    WorkerRow,
    refuse_two_changes_of_one_job,
)
from perdure.storage.opening import Demand, refuse_after_fork
from perdure.storage.rules.fast_path import ids_of
from perdure.storage.rules.filters import parse_cursor

from . import kv, listing, queues, script_args, transfer, unreadable
from .address import Address
from .client import RedisClient, Unreached
from .health import durability_of, findings, prepared, read_settings
from .keys import escaped, id_bytes, id_text, id_texts, known_names, plain, stamp_bytes
from .records import Raw, claimed_of, records_of
from .signals import Signals

LONG = 100  # jobs of an enqueue that keeps its place among others
AUDITED = 500  # rows that are looked at with every prune
AUDITS = 8  # scripts of that size in one inspection: each is short, and others run between them
SCANNED = 5  # keys that an audit walks along
MOST_AUDITS = 4_000  # audits in a row, after an index was lost
NOT_AN_ID = bytes(16)  # finds nothing
_VERDICTS = {
    ord("0"): ACCEPTED,
    ord("1"): REPEATED,
    ord("2"): REFUSED[Refusal.TAKEN],
    ord("3"): REFUSED[Refusal.COMPLETED],
    ord("4"): REFUSED[Refusal.CANCELLED],
    ord("5"): REFUSED[Refusal.NOT_FOUND],
    ord("6"): REFUSED[Refusal.STALE],
    ord("7"): REFUSED[Refusal.KEY_TAKEN],
}
_log = logging.getLogger("perdure")


class RedisStorage(Storage):
    """One loop's door to the keys under one prefix."""

    name = "Redis"
    exchanges_in_flight = 3
    bulk_in_flight = 2
    answer_timeout = 5.0

    def __init__(
        self, address: Address, *, clock: Clock | None = None, demand: Demand = "normal", migrate: bool = True
    ) -> None:
        self.name = address.product
        self._address = address
        self.place = str(address)
        self._clock = None if clock is None else reader(clock)
        self._demand = demand
        self._migrate = migrate
        self._opening = asyncio.Lock()
        self._in_order = asyncio.Lock()  # for long enqueues: those of one list take hold as they came
        # begins every signal of this store; none is sent where it is empty
        self._origin = os.urandom(8).hex().encode() if address.signals else b""
        self._link: RedisClient | None = None
        self._signals: Signals | None = None
        self._process = os.getpid()
        self._audited = [b"0"] * SCANNED
        self._inspected = b"0"
        self._kv_audited = b"0"

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._link is not None and self._process == os.getpid():
                return
            link = RedisClient(self._address, self.gives_up_after)
            try:
                await prepared(link, self._demand, self._migrate)
            except BaseException:
                await link.close()
                raise
            self._process = os.getpid()
            self._link = link
            self._signals = Signals(link, self._origin)

    async def reconnect(self) -> None:
        link = self._used()
        await link.disconnect()
        assert self._signals is not None
        await self._signals.disconnect()
        await link.command("PING")

    async def close(self) -> None:
        async with self._opening:
            link, signals = self._link, self._signals
            self._link = self._signals = None
            if link is None or signals is None or self._process != os.getpid():
                return
            await signals.close()
            await link.close()

    async def durability(self) -> Durability:
        return durability_of(await read_settings(self._used()))

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        seconds, micros = await self._used().command("TIME")
        return int(seconds) * SECOND + int(micros)

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if not jobs:
            return []
        link = self._used()
        question = link.question("enqueue", [self._time(), self._origin, *script_args.new_jobs(jobs)])
        try:
            if len(jobs) < LONG:
                told = await link.ask(question, repeat=True)
            else:
                async with self._in_order:  # the next chunk of a list is made ready meanwhile
                    told = await link.ask(question, repeat=True)
        except Unreached as error:
            # whoever enqueues may repeat it for longer than we do: the ids make it safe
            raise ConnectionError(str(error)) from error
        exceptions, woken, ended = _stored(told)
        self._tell(known_names(woken), bool(ended))
        placed = [EnqueueResult(id) for id in ids_of(jobs)]
        for number, what, owner in zip(exceptions[::3], exceptions[1::3], exceptions[2::3], strict=True):
            dropped = what == b"dropped"
            id = placed[number - 1].id if dropped else id_text(owner)
            placed[number - 1] = EnqueueResult(id, duplicate=not dropped, dropped=dropped)
        return placed

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        raise StoreError(
            f"{self.name} takes no part in a transaction of SQL: enqueue after your commit, without connection=, or give "
            "the app an outbox in the database of your transaction: Perdure(…, outbox=URL)"
        )

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        arguments = [
            self._time(),
            self._origin,
            *script_args.changes(changes),
            *script_args.started(started),
            *script_args.claim(claim, self.chunk),
        ]
        # a claim said twice would take twice: its answer is asked for by `recover_claim`
        link = self._used()
        told = await link.ask(link.question("exchange", arguments), repeat=claim is None)
        verdicts, woken, ended, due, suspects, claimed, unresolved, met = _stored(told)
        self._tell(known_names(woken), bool(ended))
        answers = [_VERDICTS[answer] for answer in verdicts]
        records, unread = claimed_of(claimed)
        if unread or met:  # there may be others in their place
            await self._set_aside([*unread, *(Raw(id, None, None) for id in met)])
            due = 0 if claim is not None else due
        return ExchangeResult(answers, records, due, bool(suspects), bool(unresolved))

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        return await self._renewed("renew", holds, started, lease)

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._renewed("check", holds, (), None)

    async def _renewed(
        self, what: str, holds: Sequence[Hold], started: Sequence[Started], lease: int | None
    ) -> list[Verdict]:
        asked = "" if lease is None else lease
        arguments = [self._time(), what, asked, *script_args.started(started), *script_args.holds(holds)]
        told = await self._used().run("renew", arguments, repeat=True)
        return [_VERDICTS[answer] for answer in told]

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        told = records_of(await self._used().run("recover_claim", [worker, stamp_bytes(stamp)], repeat=True))
        await self._set_aside(told.unread)
        return sorted(told.records, key=lambda record: (-record.priority, record.rank, record.id))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        # log lines said twice would stand there twice
        repeat = not any(note.lines for note in notes)
        told, changed = await self._used().run(
            "note", [self._origin, LOG_LINES, *script_args.notes(notes)], repeat=repeat
        )
        self._tell((), bool(changed))
        return [_VERDICTS[answer] for answer in told]

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        looked, woken, ended, met = await self._used().run(
            "resolve_edges", [self._time(), self._origin, limit], repeat=True
        )
        self._tell(known_names(woken), bool(ended))
        await self._set_aside([Raw(id, None, None) for id in met])
        return int(looked)

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        told = await self._used().run("followers", [id_bytes(id) or NOT_AN_ID for id in ids], repeat=True)
        return [sorted(id_texts(children)) for children in told]

    # -- the kv table --------------------------------------------------------------------------------
    async def kv_read(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        job: str | None = None,
        due: bool = False,
        limit: int = CHUNK,
    ) -> list[KvEntry]:
        return await kv.look(self._used(), self._time(), kind, names, job, due, limit)

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        # a write whose answer was lost may find the version that it wrote itself
        repeat = all(write.version is None for write in writes)
        arguments = [self._time(), self._origin, *kv.writes(writes)]
        answers, woken, ended = _stored(await self._used().run("kv_write", arguments, repeat=repeat))
        self._tell(known_names(woken), bool(ended))
        return [answer == ord("1") for answer in answers]

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        promoted, woken = await self._used().run("promote", [self._time(), self._origin, limit], repeat=True)
        self._tell(known_names(woken), False)
        return int(promoted)

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        link = self._used()
        told, met, miscounted, damaged = await link.run("lapsed", [self._time(), limit, 3 * contact], repeat=True)
        records, unread = records_of(told)
        await self._set_aside([*unread, *(Raw(id, None, None) for id in met)])
        if damaged:
            await self._audit_all(link)
        elif miscounted or unread or met:
            await self._audit(link)
        return records

    async def next_lapse(self) -> int | None:
        told = await self._used().run("next_lapse", [self._time()], repeat=True)
        return None if told is None else int(told)

    async def expired(self, limit: int) -> list[Record]:
        records, unread = records_of(await self._used().run("expired", [self._time(), limit], repeat=True))
        await self._set_aside(unread)
        return records

    async def prune(self, limit: int) -> int:
        link = self._used()
        pruned = await link.run("prune", [self._time(), limit], repeat=True)
        await self._audit(link)
        return int(pruned)

    async def _audit_all(self, link: RedisClient) -> None:
        """Look at all rows, because an index was lost."""
        await link.command("HDEL", link.keys["meta"], "damaged")
        self._audited, self._kv_audited = [b"0"] * SCANNED, b"0"
        for _ in range(MOST_AUDITS):
            await self._audit(link)
            await self._audit_kv(link)
            if self._audited[0] == self._audited[-1] == self._kv_audited == b"0":
                return

    async def _audit(self, link: RedisClient) -> int:
        """Look at some more rows; from one prune to the next, all of them are looked at."""
        arguments = [self._time(), self._origin, AUDITED, *self._audited]
        mended, *self._audited = await link.run("audit", arguments, repeat=True)
        if mended:
            if is_new(f"{self._address} put back"):
                _log.warning("%s: %d jobs stood in no index and were put back", self._address, mended)
            self._tell(None, False)
        return int(mended)

    async def _audit_kv(self, link: RedisClient) -> int:
        self._kv_audited, put_right = await kv.audit(link, self._kv_audited, AUDITED)
        return put_right

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        link = self._used()
        self._inspected, told = await link.run("inspect", [limit, self._inspected], repeat=True)
        unread = unreadable.not_running(records_of(told).unread, await self.now())
        mended = await self._audit_kv(link)
        for _ in range(AUDITS):
            mended += await self._audit(link)
            if self._audited[0] == b"0":  # all rows were looked at
                break
        met = await link.command("ZRANGE", link.keys["unread"], 0, limit - 1)
        return mended + await self._set_aside([*unread, *(Raw(id, None, None) for id in met)])

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await unreadable.listed(self._used(), ids, limit)

    async def _set_aside(self, unread: Sequence[Raw]) -> int:
        if not unread:
            return 0
        ids = [raw.id for raw in unread]
        done = await unreadable.set_aside(self._used(), self._time(), self.now, self._origin, ids)
        self._tell((), done > 0)
        return done

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await listing.get(self._used(), ids)

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        return await listing.find(self._used(), filter, limit, parse_cursor(cursor))

    async def count(self, filter: Filter) -> int:
        return await listing.count(self._used(), filter)

    async def log(self, id: str) -> list[str]:
        return await queues.log(self._used(), id_bytes(id))

    async def queues(self) -> list[QueueRow]:
        return await queues.queues(self._used(), self._time())

    async def configure(self, settings: QueueSettings) -> None:
        await queues.configure(self._used(), self._origin, settings)

    async def pause(self, queue: str, paused: bool) -> None:
        await queues.pause(self._used(), self._origin, queue, paused)
        if not paused:
            self._tell([queue], False)

    async def heartbeat(self, worker: WorkerRow) -> None:
        text = msgspec.msgpack.encode((worker.started_at, worker.running, worker.about))
        await self._used().run("workers", [self._time(), "beat", worker.id, text], repeat=True)

    async def remove_worker(self, worker: str) -> None:
        await self._used().run("workers", [self._time(), "leave", worker], repeat=True)

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await queues.workers(self._used(), self._time(), seen_within)

    async def queue_capacities(self) -> dict[str, QueueCapacity]:
        return await queues.rooms(self._used())

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        return await transfer.export(self._used(), after, limit)

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        await transfer.restore(self._used(), self._time(), self._origin, jobs)
        self._tell({job.record.queue for job in jobs}, True)

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return await kv.export(self._used(), after, limit)

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        await kv.restore(self._used(), rows)

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await transfer.export_keys(self._used(), cursor, limit)

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await transfer.restore_keys(self._used(), keys)

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        if not queues:
            return
        try:
            link = self._used()
            if self._origin:
                message = self._origin + b"\x00".join(escaped(queue) for queue in queues)
                await link.command("PUBLISH", link.keys.ready, message)
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)
        self._tell(queues, False)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        self._used()
        assert self._signals is not None
        return self._signals.listen(topic, wake, queues)

    # -- the doctor ----------------------------------------------------------------------------------
    async def diagnose(self) -> list[Finding]:
        return await findings(self._used())

    # -- the handler's own transaction ---------------------------------------------------------------
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        raise StoreError(
            f"ctx.transaction() needs a database with transactions, and {self.name} has none: use postgresql:// or "
            "sqlite://, or write your effects so that doing them twice does no harm"
        )

    # -- below ---------------------------------------------------------------------------------------
    def _used(self) -> RedisClient:
        if self._link is None:
            raise StoreError(f"the store {self._address} is not open")
        refuse_after_fork(self._process, self._address)
        return self._link

    def _time(self) -> Any:
        """What time it is, for the scripts; nothing, when the server's own clock is to say it."""
        return "" if self._clock is None else self._clock()

    def _tell(self, ready: Any, changed: bool) -> None:
        if self._signals is not None and (ready is None or ready or changed):
            self._signals.tell(ready, changed)


def _stored(told: Any) -> Any:
    """The answer of a script that puts jobs on record; or why it wrote nothing."""
    match told[0]:
        case b"full":
            raise QueueAtCapacity(plain(told[1]), told[2], waits=told[3] == b"waits")
        case b"orphan":
            raise MissingParent(id_text(told[1]), id_text(told[2]))
    return told
