"""Enqueues jobs.

Ordinary jobs of one shape are one statement. Jobs with a key or parents, jobs for a bounded or fair queue, and repeated ones
are planned first: what may prevent them is read, then their keys are inserted in order. If another session inserts one of
these keys meanwhile, everything is rolled back and planned again; then the plan sees the other job.

The parents of a job are checked afterwards, in a transaction of its own (`edges`). Here the job is stored as blocked, with
its edges and a line on the list of edges to resolve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from psycopg.errors import UniqueViolation

from perdure.core.record import NewJob, UniformJobs
from perdure.storage.contract import EnqueueResult, QueueSettings
from perdure.storage.rules.fast_path import ids_of, is_ordinary
from perdure.storage.rules.records import KeyName, key_name, parents_of, plan, refuse_missing_parents

from ..connection.server import Connection, Statement, pipeline
from ..queries import ONE_INSTANT, load
from ..reading.records import JOINT, array, marked, numbers_or_none
from .caller_insert import STORED_AS_NULL, full_text, insert_into, unless_default
from .fair_ranks import Shares
from .fast_copy import Instant, try_fast_copy

SHAPES = 20  # so many different ones in a call are stored one statement each
_OWN = {"id", "payload", "delay", "at"}  # what jobs of one shape have for themselves
_SHAPE = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in _OWN))


class _Bounded(Exception):
    """Nothing was stored: a queue is bounded or fair, so that it must be looked at first."""


class _Outrun(Exception):
    """Another session took a key while we were about to."""


class Enqueue:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._sql = load("enqueue", schema)
        self._insert_several = load("enqueue", schema, clock=ONE_INSTANT)["insert_plain"]
        self._shares = Shares(schema)

    def ready(self, jobs: Sequence[NewJob], now: int | None) -> Sequence[Statement]:
        """The statements for jobs that may be stored without a look; none, if they may not."""
        if isinstance(jobs, UniformJobs) and is_ordinary(jobs.template):
            alike = _alike(jobs, now)
            if alike is not None:
                return [(self._sql["insert_plain"], alike)]
        shapes = _by_shape(jobs)
        if any(same[0].unique_key is not None or same[0].after is not None for same in shapes):
            return ()
        return self._inserts(jobs, shapes, now)

    def beside(self, jobs: Sequence[NewJob], now: int | None) -> list[Statement]:
        """What stores jobs without keys and parents, beside other work of a transaction. It writes as many rows; fewer where
        a queue is bounded or fair or an id known: then they are to be put in their places one by one."""
        if not jobs or any(job.unique_key is not None or job.after is not None for job in jobs):
            return []
        return [(insert_into(self._schema, jobs, parameter="%(jobs)s")["insert"], {"jobs": full_text(jobs, now)})]

    async def put(
        self, connection: Connection, jobs: Sequence[NewJob], now: int | None, inserts: Sequence[Statement]
    ) -> list[EnqueueResult]:
        """Put jobs on record in a transaction of their own; `inserts` is what `ready` gave."""
        placed = await self.insert_at_once(connection, jobs, inserts) if inserts else None
        return await self.insert_planned(connection, jobs, now) if placed is None else placed

    async def insert_at_once(
        self, connection: Connection, jobs: Sequence[NewJob], inserts: Sequence[Statement]
    ) -> list[EnqueueResult] | None:
        """The same without a look at what stands in their way. None: a look is needed, and nothing was stored."""
        try:
            await self._at_once(connection, inserts)
        except (_Bounded, UniqueViolation):
            return None  # a bounded queue, or an enqueue that is repeated
        return [EnqueueResult(id) for id in ids_of(jobs)]

    async def try_copy(
        self, connection: Connection, jobs: UniformJobs, instant: Instant, *, waiting_first: bool
    ) -> list[EnqueueResult] | None:
        return await try_fast_copy(connection, self._schema, jobs, instant, waiting_first=waiting_first)

    async def _at_once(self, connection: Connection, inserts: Sequence[Statement]) -> None:
        if len(inserts) == 1:
            stored = await connection.execute(*inserts[0])
            if not stored.rowcount:
                raise _Bounded
            return
        async with connection.transaction():
            if not all(stored.rowcount for stored in await pipeline(connection, inserts)):
                raise _Bounded

    async def insert_planned(
        self,
        connection: Connection,
        jobs: Sequence[NewJob],
        now: int | None,
        *,
        bounded: bool = True,
        brief: bool = True,
    ) -> list[EnqueueResult]:
        """Put jobs on record after a look at what stands in their way; in a transaction that is open already, beside its
        other work. One that is not `brief` keeps nobody waiting: shares are given afterwards."""
        while True:
            try:
                async with connection.transaction():
                    return await self._plan(connection, jobs, now, bounded, brief)
            except _Outrun:
                continue

    async def _plan(
        self, connection: Connection, jobs: Sequence[NewJob], now: int | None, bounded: bool, brief: bool
    ) -> list[EnqueueResult]:
        queues = await self._locked_queues(connection, jobs, bounded, brief)
        bounds = {name: queue for name, queue in queues.items() if bounded and queue.max_depth is not None}
        known, owners, depths = await self._look(connection, jobs, bounds, now)
        placed, fresh = plan(jobs, known, owners.get, bounds.get, depths.__getitem__, bounded=bounded)
        if fresh:
            refuse_missing_parents(fresh, await self._parents(connection, fresh, brief))
            await self._take_keys(connection, fresh, now)
            weights = {name: queue.weights for name, queue in queues.items() if queue.fair}
            ranks, at = await self._shares.give(connection, fresh, weights, now)
            insert = insert_into(self._schema, fresh, parameter="%(jobs)s", room="true")["insert"]
            await connection.execute(insert, {"jobs": full_text(fresh, at, ranks)})
        return placed

    async def _locked_queues(
        self, connection: Connection, jobs: Sequence[NewJob], bounded: bool, placing: bool
    ) -> dict[str, QueueSettings]:
        values = {"queues": sorted({job.queue for job in jobs}), "bounded": bounded, "placing": placing}
        rows = await (await connection.execute(self._sql["lock_queues"], values)).fetchall()
        return {row[0]: QueueSettings(row[0], False, *row[1:]) for row in rows}

    async def weights(self, connection: Connection, jobs: Sequence[NewJob]) -> dict[str, str | None]:
        """The fair ones among the queues of these jobs, locked, each with its weights."""
        queues = await self._locked_queues(connection, jobs, False, True)
        return {name: queue.weights for name, queue in queues.items()}

    async def _parents(self, connection: Connection, fresh: Sequence[NewJob], keep: bool) -> set[str]:
        """Those on record that these jobs would wait for. Kept from being pruned, if that keeps nobody waiting for long."""
        parents = {parent for job in fresh for parent in parents_of(job.after)}
        if not parents:
            return set()
        ids = {"ids": array(sorted(parents))}
        before = [(self._sql["keep"], ids)] if keep else []
        *_, known = await pipeline(connection, [*before, (self._sql["followable"], ids)])
        return {id for (id,) in await known.fetchall()}

    async def refuse_orphans(self, connection: Connection, jobs: Sequence[NewJob]) -> None:
        """`Orphan`, if one of these would wait for a job that is neither on record nor among them."""
        refuse_missing_parents(jobs, await self._parents(connection, jobs, True))

    async def _look(
        self, connection: Connection, jobs: Sequence[NewJob], bounds: Mapping[str, QueueSettings], now: int | None
    ) -> tuple[set[str], dict[KeyName, str], dict[str, int]]:
        """What stands in the way of these jobs: known ids, owners of keys, depths of bounded queues."""
        names = {(name[0], marked(name[1])): name for job in jobs if (name := key_name(job)) is not None}
        statements: list[Statement] = [
            (self._sql["known"], {"ids": array(job.id for job in jobs)}),
            (self._sql["held_keys"], {"keys": [key for apart, key in names if not apart]}),
            (self._sql["kept_keys"], {"keys": [key for apart, key in names if apart], "now": now}),
        ]
        statements += [
            (self._sql["depth"], {"queue": name, "enough": bound.max_depth}) for name, bound in bounds.items()
        ]
        known, held, kept, *depths = [await cursor.fetchall() for cursor in await pipeline(connection, statements)]
        owners = {names[False, key]: owner for key, owner in held}
        owners |= {names[True, key]: owner for key, owner in kept}
        return {id for (id,) in known}, owners, {name: rows[0][0] for name, rows in zip(bounds, depths, strict=True)}

    async def _take_keys(self, connection: Connection, jobs: Sequence[NewJob], now: int | None) -> None:
        for apart, statement in ((False, "take_held"), (True, "take_kept")):
            takers = [job for job in jobs if (name := key_name(job)) is not None and name[0] is apart]
            if not takers:
                continue
            parameters = {
                "keys": [marked(job.unique_key) for job in takers],
                "ids": array(job.id for job in takers),
                "lives": [job.unique_window or 0 if job.unique_scope == "window" else None for job in takers],
                "now": now,
            }
            if (await connection.execute(self._sql[statement], parameters)).rowcount != len(takers):
                raise _Outrun

    # -- statements ----------------------------------------------------------------------------------
    def _inserts(self, jobs: Sequence[NewJob], shapes: Sequence[Sequence[NewJob]], now: int | None) -> list[Statement]:
        plain = [same for same in shapes if is_ordinary(same[0]) and not any(JOINT in job.payload for job in same)]
        others: Sequence[NewJob] = ()
        if len(plain) > SHAPES:
            plain, others = [], jobs
        elif len(plain) < len(shapes):
            known = {job.id for same in plain for job in same}
            others = [job for job in jobs if job.id not in known]
        if len(plain) + bool(others) == 1:
            plainly, clock = self._sql["insert_plain"], {}
        else:  # jobs of one list are of one instant, so that they keep its order
            plainly, clock = self._insert_several, {"clock": ONE_INSTANT}
        statements: list[Statement] = [(plainly, _plain(same, now)) for same in plain]
        if others:
            insert = insert_into(self._schema, others, parameter="%(jobs)s", **clock)["insert"]
            statements.append((insert, {"jobs": full_text(others, now)}))
        return statements


def _by_shape(jobs: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    """Jobs that differ in nothing but id, payload and time, together."""
    shapes = list(map(_SHAPE, jobs))
    if shapes.count(shapes[0]) == len(shapes):  # as nearly always
        return [jobs]
    alike: dict[tuple[Any, ...], list[NewJob]] = {}
    for shape, job in zip(shapes, jobs, strict=True):
        alike.setdefault(shape, []).append(job)
    return list(alike.values())


def _alike(jobs: UniformJobs, now: int | None) -> Mapping[str, Any] | None:
    """What stores them. None: a payload has something in it that cannot travel in this way."""
    payloads = JOINT.join(jobs.payloads)
    if payloads.count(JOINT) != len(jobs) - 1:
        return None
    one, many = jobs.template, len(jobs)
    return _values_of(one, jobs.ids, payloads, [one.delay or None] * many, [one.at] * many, now)


def _plain(jobs: Sequence[NewJob], now: int | None) -> Mapping[str, Any]:
    payloads = JOINT.join([job.payload for job in jobs])
    delays, ats = [job.delay or None for job in jobs], [job.at for job in jobs]
    return _values_of(jobs[0], [job.id for job in jobs], payloads, delays, ats, now)


def _values_of(
    one: NewJob,
    ids: Sequence[str],
    payloads: str,
    delays: Sequence[int | None],
    ats: Sequence[int | None],
    now: int | None,
) -> Mapping[str, Any]:
    return {
        "ids": array(ids),
        "payloads": payloads,
        "delays": numbers_or_none(delays),
        "ats": numbers_or_none(ats),
        "lease": one.lease,
        "timeout": one.timeout,
        "max_attempts": one.max_attempts,
        "priority": one.priority,
        "task": one.task,
        "queue": one.queue,
        "now": now,
        **{name: unless_default(one, name) for name in STORED_AS_NULL},
    }
