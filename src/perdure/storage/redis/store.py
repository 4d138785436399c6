"""The store on Redis and Valkey. Each verb of the contract is one Lua script, which the server runs as a whole."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.core.clock import SECOND, Clock, reader
from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import StoreError
from perdure.storage.contract import (
    CHUNK,
    LOG_LINES,
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
    QueueCapacity,
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
from perdure.storage.opening import Demand, refuse_after_fork
from perdure.storage.rules.fast_path import ids_of
from perdure.storage.rules.filters import parse_cursor

from . import kv, script_args
from .address import Address
from .answers import raise_refusal, verdicts_of
from .audit import Audit
from .connection.client import RedisClient, Unreached
from .connection.signals import Signals
from .health import check_store, diagnose, durability_of, read_settings
from .keys import escape, id_bytes, id_text, id_texts, readable_names, stamp_bytes
from .reading import listing, queues, transfer, unreadable
from .reading.records import Raw, claimed_of, records_of
from .script_args import NOT_AN_ID

LONG = 100  # jobs of an enqueue that keeps its place among others
_log = logging.getLogger("perdure")


class RedisStorage(Storage):
    """The keys under one prefix, for one event loop."""

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
        self._client: RedisClient | None = None
        self._signals: Signals | None = None
        self._process = os.getpid()
        self._audit: Audit  # made by `open`

    # -- open and close ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._client is not None and self._process == os.getpid():
                return
            client = RedisClient(self._address, self.gives_up_after)
            try:
                await check_store(client, self._demand, self._migrate)
            except BaseException:
                await client.close()
                raise
            self._process = os.getpid()
            self._client = client
            self._signals = Signals(client, self._origin)
            self._audit = Audit(client, self._time, self._origin, self._notify)

    async def reconnect(self) -> None:
        client = self._redis
        await client.disconnect()
        assert self._signals is not None
        await self._signals.disconnect()
        await client.command("PING")

    async def close(self) -> None:
        async with self._opening:
            client, signals = self._client, self._signals
            self._client = self._signals = None
            if client is None or signals is None or self._process != os.getpid():
                return
            await signals.close()
            await client.close()

    async def durability(self) -> Durability:
        return durability_of(await read_settings(self._redis))

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        seconds, micros = await self._redis.command("TIME")
        return int(seconds) * SECOND + int(micros)

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if not jobs:
            return []
        client = self._redis
        call = client.prepare("enqueue", [self._time(), self._origin, *script_args.pack_jobs(jobs)])
        try:
            if len(jobs) < LONG:
                answer = await client.send(call, repeat=True)
            else:
                async with self._in_order:  # the next chunk of a list is made ready meanwhile
                    answer = await client.send(call, repeat=True)
        except Unreached as error:
            # whoever enqueues may repeat it for longer than we do: the ids make it safe
            raise ConnectionError(str(error)) from error
        exceptions, woken, ended = raise_refusal(answer)
        self._notify(readable_names(woken), bool(ended))
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
            *script_args.pack_changes(changes),
            *script_args.pack_starts(started),
            *script_args.pack_claim(claim, self.chunk),
        ]
        # a claim said twice would take twice: its answer is asked for by `recover_claim`
        client = self._redis
        answer = await client.send(client.prepare("exchange", arguments), repeat=claim is None)
        verdicts, woken, ended, due, suspects, claimed, unresolved, met = raise_refusal(answer)
        self._notify(readable_names(woken), bool(ended))
        answers = verdicts_of(verdicts)
        records, unread = claimed_of(claimed)
        if unread or met:  # there may be others in their place
            await self._set_aside([*unread, *(Raw(id, None, None) for id in met)])
            due = 0 if claim is not None else due
        return ExchangeResult(answers, records, due, bool(suspects), bool(unresolved))

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        return await self._check_holds("renew", holds, started, lease)

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        return await self._check_holds("check", holds, (), None)

    async def _check_holds(
        self, what: str, holds: Sequence[Hold], started: Sequence[Started], lease: int | None
    ) -> list[Verdict]:
        asked = "" if lease is None else lease
        arguments = [self._time(), what, asked, *script_args.pack_starts(started), *script_args.pack_holds(holds)]
        answer = await self._redis.run("renew", arguments, repeat=True)
        return verdicts_of(answer)

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        answer = records_of(await self._redis.run("recover_claim", [worker, stamp_bytes(stamp)], repeat=True))
        await self._set_aside(answer.unread)
        return sorted(answer.records, key=lambda record: (-record.priority, record.rank, record.id))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        # log lines said twice would stand there twice
        repeat = not any(note.lines for note in notes)
        answer, changed = await self._redis.run(
            "note", [self._origin, LOG_LINES, *script_args.pack_notes(notes)], repeat=repeat
        )
        self._notify((), bool(changed))
        return verdicts_of(answer)

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        looked, woken, ended, met = await self._redis.run(
            "resolve_edges", [self._time(), self._origin, limit], repeat=True
        )
        self._notify(readable_names(woken), bool(ended))
        await self._set_aside([Raw(id, None, None) for id in met])
        return int(looked)

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        answer = await self._redis.run("followers", [id_bytes(id) or NOT_AN_ID for id in ids], repeat=True)
        return [sorted(id_texts(children)) for children in answer]

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
        return await kv.read(self._redis, self._time(), kind, names, job, due, limit)

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        # a write whose answer was lost may find the version that it wrote itself
        repeat = all(write.version is None for write in writes)
        arguments = [self._time(), self._origin, *kv.pack_writes(writes)]
        answers, woken, ended = raise_refusal(await self._redis.run("kv_write", arguments, repeat=repeat))
        self._notify(readable_names(woken), bool(ended))
        return [answer == ord("1") for answer in answers]

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        promoted, woken = await self._redis.run("promote", [self._time(), self._origin, limit], repeat=True)
        self._notify(readable_names(woken), False)
        return int(promoted)

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        client = self._redis
        answer, met, miscounted, damaged = await client.run("lapsed", [self._time(), limit, 3 * contact], repeat=True)
        records, unread = records_of(answer)
        await self._set_aside([*unread, *(Raw(id, None, None) for id in met)])
        if damaged:
            await self._audit.check_all()
        elif miscounted or unread or met:
            await self._audit.check_rows()
        return records

    async def next_lapse(self) -> int | None:
        answer = await self._redis.run("next_lapse", [self._time()], repeat=True)
        return None if answer is None else int(answer)

    async def expired(self, limit: int) -> list[Record]:
        records, unread = records_of(await self._redis.run("expired", [self._time(), limit], repeat=True))
        await self._set_aside(unread)
        return records

    async def prune(self, limit: int) -> int:
        pruned = await self._redis.run("prune", [self._time(), limit], repeat=True)
        await self._audit.check_rows()
        return int(pruned)

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        client = self._redis
        repaired, found = await self._audit.inspect(limit)
        unread = unreadable.not_running(found.unread, await self.now())
        ids = await client.command("ZRANGE", client.keys["unread"], 0, limit - 1)
        return repaired + await self._set_aside([*unread, *(Raw(id, None, None) for id in ids)])

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await unreadable.list_unreadable(self._redis, ids, limit)

    async def _set_aside(self, unread: Sequence[Raw]) -> int:
        if not unread:
            return 0
        ids = [raw.id for raw in unread]
        done = await unreadable.set_aside(self._redis, self._time(), self.now, self._origin, ids)
        self._notify((), done > 0)
        return done

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await listing.get(self._redis, ids)

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        return await listing.find(self._redis, filter, limit, parse_cursor(cursor))

    async def count(self, filter: Filter) -> int:
        return await listing.count(self._redis, filter)

    async def log(self, id: str) -> list[str]:
        return await queues.log(self._redis, id_bytes(id))

    async def queues(self) -> list[QueueRow]:
        return await queues.queues(self._redis, self._time())

    async def configure(self, settings: QueueSettings) -> None:
        await queues.configure(self._redis, self._origin, settings)

    async def pause(self, queue: str, paused: bool) -> None:
        await queues.pause(self._redis, self._origin, queue, paused)
        if not paused:
            self._notify([queue], False)

    async def heartbeat(self, worker: WorkerRow) -> None:
        text = msgspec.msgpack.encode((worker.started_at, worker.running, worker.about))
        await self._redis.run("workers", [self._time(), "beat", worker.id, text], repeat=True)

    async def remove_worker(self, worker: str) -> None:
        await self._redis.run("workers", [self._time(), "leave", worker], repeat=True)

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        return await queues.workers(self._redis, self._time(), seen_within)

    async def queue_capacities(self) -> dict[str, QueueCapacity]:
        return await queues.capacities(self._redis)

    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        return await transfer.export(self._redis, after, limit)

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        await transfer.restore(self._redis, self._time(), self._origin, jobs)
        self._notify({job.record.queue for job in jobs}, True)

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return await kv.export(self._redis, after, limit)

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        await kv.restore(self._redis, rows)

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await transfer.export_keys(self._redis, cursor, limit)

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await transfer.restore_keys(self._redis, keys)

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        if not queues:
            return
        try:
            client = self._redis
            if self._origin:
                message = self._origin + b"\x00".join(escape(queue) for queue in queues)
                await client.command("PUBLISH", client.keys.ready, message)
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)
        self._notify(queues, False)

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        self._check_open()
        assert self._signals is not None
        return self._signals.listen(topic, wake, queues)

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self._redis)

    async def begin_transaction(self, longest: int) -> StoreTransaction:
        raise StoreError(
            f"ctx.transaction() needs a database with transactions, and {self.name} has none: use postgresql:// or "
            "sqlite://, or write your effects so that doing them twice does no harm"
        )

    # -- below ---------------------------------------------------------------------------------------
    @property
    def _redis(self) -> RedisClient:
        return self._check_open()

    def _check_open(self) -> RedisClient:
        if self._client is None:
            raise StoreError(f"the store {self._address} is not open")
        refuse_after_fork(self._process, self._address)
        return self._client

    def _time(self) -> Any:
        """The time for the scripts; empty if they use the server's clock."""
        return "" if self._clock is None else self._clock()

    def _notify(self, ready: Any, changed: bool) -> None:
        if self._signals is not None and (ready is None or ready or changed):
            self._signals.notify(ready, changed)
