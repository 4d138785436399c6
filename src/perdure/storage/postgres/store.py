"""The PostgreSQL store. Each verb of the contract is one transaction on a connection of a pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from perdure.core.clock import Clock
from perdure.core.lifecycle import Change
from perdure.core.record import Hold, NewJob, Record
from perdure.storage.contract import (
    CHUNK,
    CallerStatements,
    Claim,
    EnqueueResult,
    ExchangeResult,
    Filter,
    JobDump,
    KeptKey,
    KvEntry,
    KvWrite,
    Note,
    QueueCapacity,
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
from perdure.storage.database_identity import DatabaseIdentity
from perdure.storage.opening import Demand
from perdure.storage.rules.fast_path import kinds_of
from perdure.storage.rules.filters import parse_cursor

from .address import Address
from .claiming.claim import Claims
from .claiming.fast_exchange import FastExchange
from .connection.database_identity import look
from .connection.server import Connection, pipeline
from .edges.edges import Edges
from .kv import KvEntries
from .lifetime import PostgresLifetime
from .limits.fast_limits import FastLimitedClaim
from .limits.limits import Limits
from .reading.transfer import Carry
from .transaction import PostgresTransaction
from .upkeep.bad_value_recovery import Cause
from .upkeep.inspection import Inspection
from .upkeep.unreadable import Aside
from .upkeep.upkeep import Upkeep
from .writing.apply import Apply, Effects
from .writing.bulk_enqueue import LongEnqueues
from .writing.caller_insert import insertion
from .writing.enqueue import Enqueue
from .writing.exchange import Exchanges

LONG = 100  # jobs of an enqueue that keeps its place among others
BRIEF = 1.0  # seconds of retries for callers that must know soon that the store cannot be reached
_log = logging.getLogger("perdure")


class PostgresStorage(PostgresLifetime):
    """The verbs of one event loop's store."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, demand: Demand = "normal", migrate: bool = True
    ) -> None:
        super().__init__(address, clock=clock, demand=demand, migrate=migrate)
        self._enqueue = Enqueue(address.schema)
        self._apply = Apply(address.schema, self._enqueue)
        self._doubtful: list[str] = []  # claimed jobs that cannot be read, or may be such
        self._claims = Claims(address.schema, self._doubtful)
        self._limits = Limits(address.schema, self._doubtful)
        self._edges = Edges(address.schema, self._enqueue, self._apply)
        self._exchanges = Exchanges(
            self._apply,
            self._claims,
            self._limits,
            FastExchange(address.schema, self._claims, self._doubtful),
            FastLimitedClaim(address.schema, self._doubtful),
            self._edges,
            self._server,
            self._now,
        )
        self._kv = KvEntries(address.schema, self._enqueue, self._apply)
        self._upkeep = Upkeep(address.schema, self._limits)
        self._carry = Carry(address.schema, self._apply)
        self._aside = Aside(address.schema, self._carry)
        self._inspection = Inspection(address.schema, self._aside, self._limits)
        self._cause = Cause(self._aside, self._inspection, self._server, self._now)
        self._home: DatabaseIdentity | None = None
        self._long = LongEnqueues(self._enqueue, self._listing.now)

    async def _recover(self, error: Exception) -> bool:
        return await self._cause.remove(error)

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if not jobs:
            return []
        if len(jobs) < LONG:
            server, put, now = self._server(), self._enqueue.put, self._now()
            inserts = self._enqueue.ready(jobs, now)
            placed = await server.run_indexed(lambda connection: put(connection, jobs, now, inserts), repeat=True)
        else:
            placed = await self._long.put(self._server(), jobs, self._now())
        await self._finish(_effects_of(jobs))
        return placed

    async def _finish(self, effects: Effects) -> None:
        if effects.resolves:
            await self._exchanges.resolve_edges(effects)
        self._tell(effects)

    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        return insertion(jobs, self._address.schema, self._now())

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        if self._home is None or fresh:
            self._home = await self._server().run_default(lambda connection: look(connection, self._address))
        return self._home

    # -- claim, renew, apply -------------------------------------------------------------------------
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        refuse_two_changes_of_one_job(changes)
        effects = Effects()
        removed = self._cause.removed
        answer = await self._exchanges.exchange(changes, claim, started, effects)
        if claim is not None and (self._doubtful or self._cause.removed != removed):
            answer = await self._without_flawed(answer, claim, effects)
        self._tell(effects)
        return answer

    async def _without_flawed(self, answer: ExchangeResult, claim: Claim, effects: Effects) -> ExchangeResult:
        """The answer to a claim that met jobs which cannot be read: those are set aside. A part of the claim may have been
        repeated, so that it is asked for all that it holds."""
        doubtful, self._doubtful[:] = list(self._doubtful), []
        if doubtful:
            await self._cause.set_aside(doubtful, effects)
        claimed = await self.recover_claim(claim.worker, claim.stamp)
        if not claimed and doubtful:  # all were set aside: there may be others behind them
            again = await self.exchange((), claim)
            return msgspec.structs.replace(again, verdicts=answer.verdicts)
        return msgspec.structs.replace(answer, claimed=claimed)

    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        renew = self._apply.renew
        return await self._server().run_indexed(
            lambda connection: renew(connection, holds, started, lease, self._now()), repeat=True, retry_for=BRIEF
        )

    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        check = self._apply.check
        return await self._server().run_indexed(
            lambda connection: check(connection, holds), repeat=True, retry_for=BRIEF
        )

    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        return await self._server().run_default(lambda connection: self._apply.holding(connection, worker, stamp))

    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        effects = Effects()

        async def write(connection: Connection) -> list[Verdict]:
            async with connection.transaction():
                return await self._apply.note(connection, notes, effects, self._now())

        verdicts = await self._server().run_indexed(write)
        self._tell(effects)
        return verdicts

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve_edges(self, limit: int) -> int:
        if not await self._server().run_indexed(self._edges.has_unresolved, repeat=True):
            return 0  # as nearly always
        effects = Effects()
        rank, resolve = self._edges.rank, self._edges.resolve
        ranked = await self._server().run_indexed(lambda connection: rank(connection, limit, effects, self._now()))
        found = await self._server().run_indexed(
            lambda connection: resolve(connection, limit, effects, self._now(), newest=False)
        )
        self._tell(effects)
        return ranked + found.edges

    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        return await self._server().run_indexed(lambda connection: self._edges.followers(connection, ids), repeat=True)

    # -- kv entries ---------------------------------------------------------------------------------
    async def kv_read(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        job: str | None = None,
        due: bool = False,
        limit: int = CHUNK,
    ) -> list[KvEntry]:
        look = self._kv.look
        return await self._server().run_indexed(
            lambda connection: look(connection, kind, names, job, due, limit, self._now()), repeat=True
        )

    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        if not writes:
            return []
        done, jobs = await self._server().run_indexed(
            lambda connection: self._kv.write(connection, writes, self._now())
        )
        await self._finish(_effects_of(jobs))
        return done

    # -- upkeep --------------------------------------------------------------------------------------
    async def promote(self, limit: int) -> int:
        async def run(connection: Connection) -> list[str]:
            (cursor,) = await pipeline(connection, [self._claims.promote(limit, self._now())])
            return [queue for (queue,) in await cursor.fetchall()]

        queues = await self._server().run_indexed(run, repeat=True)
        self._signals().tell(set(queues), False)
        return len(queues)

    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        lapsed = self._upkeep.lapsed
        return await self._server().run_default(lambda connection: lapsed(connection, limit, contact, self._now()))

    async def next_lapse(self) -> int | None:
        return await self._server().run_default(lambda connection: self._upkeep.next_lapse(connection, self._now()))

    async def expired(self, limit: int) -> list[Record]:
        return await self._server().run_default(lambda connection: self._upkeep.expired(connection, limit, self._now()))

    async def prune(self, limit: int) -> int:
        return await self._server().run_default(lambda connection: self._upkeep.prune(connection, limit, self._now()))

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        effects = Effects()
        found = await self._server().directly(
            lambda connection: self._inspection.go_on(connection, limit, self._now(), effects)
        )
        self._tell(effects)
        return found

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        return await self._server().run_default(lambda connection: self._aside.kept(connection, ids, limit))

    # -- reading and settings ------------------------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        get = self._listing.get
        return await self._server().run_indexed(lambda connection: get(connection, ids, self._now()), repeat=True)

    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        after, find = parse_cursor(cursor, odd_ids=False), self._listing.find
        return await self._server().run_default(lambda connection: find(connection, filter, limit, after, self._now()))

    async def count(self, filter: Filter) -> int:
        return await self._server().run_default(lambda connection: self._listing.count(connection, filter))

    async def log(self, id: str) -> list[str]:
        return await self._server().run_default(lambda connection: self._listing.log(connection, id))

    async def queues(self) -> list[QueueRow]:
        return await self._server().run_default(lambda connection: self._listing.queues(connection, self._now()))

    async def queue_capacities(self) -> dict[str, QueueCapacity]:
        return await self._server().run_indexed(self._listing.rooms, repeat=True)

    async def configure(self, settings: QueueSettings) -> None:
        await self._server().directly(lambda connection: self._listing.configure(connection, settings))

    async def pause(self, queue: str, paused: bool) -> None:
        await self._server().run_default(lambda connection: self._listing.pause(connection, queue, paused))
        if not paused:
            self._signals().tell({queue}, False)

    async def heartbeat(self, worker: WorkerRow) -> None:
        await self._server().run_indexed(
            lambda connection: self._listing.beat(connection, worker, self._now()), repeat=True, retry_for=BRIEF
        )

    async def remove_worker(self, worker: str) -> None:
        leave = self._listing.leave
        await self._server().run_indexed(lambda connection: leave(connection, worker), repeat=True, retry_for=BRIEF)

    async def workers(self, seen_within: int) -> list[WorkerRow]:
        workers = self._listing.workers
        return await self._server().run_default(lambda connection: workers(connection, seen_within, self._now()))

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        export = self._carry.export
        return await self._server().run_default(lambda connection: export(connection, after, limit, self._now()))

    async def restore(self, jobs: Sequence[JobDump]) -> None:
        effects = Effects()
        await self._server().directly(lambda connection: self._carry.restore(connection, jobs, effects))
        self._tell(effects)

    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return await self._server().run_default(lambda connection: self._kv.export(connection, after, limit))

    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        await self._server().directly(lambda connection: self._kv.restore(connection, rows))

    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        return await self._server().run_default(lambda connection: self._carry.export_keys(connection, cursor, limit))

    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        await self._server().directly(lambda connection: self._carry.restore_keys(connection, keys))

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str]) -> None:
        if self._opened is not None:
            signals = self._signals()
            signals.tell(set(queues), False)
            await signals.flush()

    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        return self._signals().listen(topic, wake, queues)

    def _tell(self, effects: Effects) -> None:
        self._signals().tell(effects.ready, effects.changed)

    # -- the handler's own transaction ---------------------------------------------------------------
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        transaction = PostgresTransaction(self._server(), self._enqueue, self._apply, self._finish, self._now, longest)
        await transaction.begin()
        return transaction


def _effects_of(jobs: Sequence[NewJob]) -> Effects:
    """What follows from an enqueue once it is committed: for jobs that wait, and for those who wait for jobs."""
    kinds = kinds_of(jobs)
    ready = {job.queue for job in kinds if not job.waits}
    return Effects(ready, resolves=any(job.after is not None for job in kinds))
