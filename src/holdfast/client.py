"""Putting jobs on record: one, many, or inside a caller's own transaction."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from .errors import HoldfastError, InvalidCall, QueueFull
from .flow.events import Subscription, checked_address, event_text, record, recorded, subscriptions_of
from .flow.flow import Flow, Graph, Node
from .flow.jobs import linked
from .gatherer import room, stored
from .handle import GroupHandle, JobHandle
from .ids import new_ids
from .job import NewJob
from .options import Plan
from .settings import ENQUEUE_CHUNK
from .storage.contract import Full, Placed, Storage
from .storage.outbox import Late
from .storage.rules import led_by, owners_among, parents_of
from .task import Bound, Call

if TYPE_CHECKING:
    from .app import Holdfast

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_HEARD_FOR = 1.0  # seconds for which the list of subscriptions is believed


Chunk = tuple[int, list[Placed]]  # where it begins in its list, and what became of it


class Client:
    """The enqueueing side of an app."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._heard: WeakKeyDictionary[Storage, tuple[float, list[Subscription]]] = WeakKeyDictionary()
        self._told: WeakSet[Storage] = WeakSet()  # those that have our subscriptions on record

    async def place(self, job: NewJob) -> Placed:
        """Store one job, together with others that are asked for at the same time; waits while its queue says so."""
        place = await self._app._place("enqueue without connection=tx")
        pause = _FIRST_PAUSE
        while True:
            try:
                return await place.gatherer.place(job)
            except Full as full:
                pause = await _wait_or_refuse(place.storage, full, pause)

    async def place_list(self, jobs: Sequence[NewJob]) -> list[Placed]:
        """Store a list, all or none. One alone goes with others that come alone."""
        if len(jobs) == 1:
            return [await self.place(jobs[0])]
        storage = (await self._app._place("enqueue without connection=tx")).storage
        pause = _FIRST_PAUSE
        while True:
            try:
                return await stored(storage, jobs)
            except Full as full:
                pause = await _wait_or_refuse(storage, full, pause)

    async def place_in(self, connection: object, jobs: Sequence[NewJob]) -> list[Placed]:
        """Store jobs inside the caller's transaction; they exist when it commits."""
        from .storage.connections import place_in

        return await place_in(self._app._places, connection, jobs)

    async def enqueue(
        self, calls: Sequence[Call[Any]], connection: object, nodes: Sequence[Node[Any]] = ()
    ) -> list[JobHandle[Any]]:
        """Store calls, all or none up to 500, above that in chunks. Their ids stay until all are stored, so that
        repeating the same calls after an error is safe. `nodes`: their order, if they have one."""
        bounds = [bound_to(self._app, call) for call in calls]
        where = _one_connection(connection, bounds)
        if nodes:
            _check_handed(nodes, bounds)
        _check_sizes(calls, bounds)
        ids = _ids(calls)
        stored: list[Chunk] = []
        try:
            if len(calls) <= ENQUEUE_CHUNK or nodes or where is not None:
                jobs = _jobs(calls, bounds, ids)
                await self._one_after_the_other(linked(nodes, jobs) if nodes else jobs, where, stored)
            else:
                await self._overlapping(_chunks(calls, bounds, ids), stored)
        except HoldfastError as error:
            _tell_stored(error, self._handles(stored, bounds), len(calls), inside=where is not None)
            raise
        for call in calls:
            call._ids.clear()
        return self._handles(stored, bounds)

    async def _one_after_the_other(self, jobs: Sequence[NewJob], where: object, stored: list[Chunk]) -> None:
        owners: dict[str, str] = {}  # of jobs that were duplicates
        for start in range(0, len(jobs), ENQUEUE_CHUNK):
            part = led_by(owners, list(jobs[start : start + ENQUEUE_CHUNK]))
            placed = await (self.place_list(part) if where is None else self.place_in(where, part))
            owners |= owners_among(part, placed)
            stored.append((start, placed))

    async def _overlapping(self, chunks: Iterable[tuple[int, list[NewJob]]], stored: list[Chunk]) -> None:
        """Chunks of a plain list, the next made ready while the last is stored, where the store keeps their order."""
        ahead = (await self._app._storage()).lists_ahead
        under_way: deque[tuple[int, asyncio.Task[list[Placed]]]] = deque()

        async def next_stored() -> None:
            start, storing = under_way.popleft()
            stored.append((start, await storing))

        try:
            for start, jobs in chunks:
                if len(under_way) == ahead:
                    await next_stored()
                under_way.append((start, asyncio.create_task(self.place_list(jobs), name="holdfast list")))
                await asyncio.sleep(0)  # it goes its way while the next is made
            while under_way:
                await next_stored()
        finally:
            for start, storing in under_way:  # after a failure: what was on its way may be stored too
                with suppress(Exception):
                    stored.append((start, await storing))

    def _handles(self, stored: Sequence[Chunk], bounds: Sequence[Bound]) -> list[JobHandle[Any]]:
        return [
            JobHandle(self._app, each.id, bound.definition, each.duplicate, each.dropped, isinstance(each, Late))
            for start, placed in stored
            for each, bound in zip(placed, bounds[start : start + len(placed)], strict=True)
        ]

    async def publish(
        self, topic: str, event: object, routing_key: str | None, connection: object
    ) -> list[JobHandle[Any]]:
        """A job for each subscription, all or none."""
        checked_address(topic, routing_key)
        text = event_text(event, self._app.settings.max_bytes)
        if connection is None:
            storage = (await self._app._place("publish without connection=tx")).storage
        else:
            storage = (await self._app._places.get(migrate=False)).storage
        heard = await self._subscriptions(storage, inside=connection is not None)
        wanted = [each for each in heard if each.wants(topic, routing_key)]
        jobs = [self._event_job(each, event, text, routing_key) for each in wanted]
        if not jobs:
            return []
        placed = await (self.place_list(jobs) if connection is None else self.place_in(connection, jobs))
        known = self._app.definitions()
        return [
            JobHandle(self._app, each.id, known.get(job.task), each.duplicate, each.dropped, isinstance(each, Late))
            for job, each in zip(jobs, placed, strict=True)
        ]

    def _event_job(self, subscription: Subscription, event: object, text: str, routing_key: str | None) -> NewJob:
        definition = self._app.definitions().get(subscription.task)
        if definition is None:
            return subscription.job(text, routing_key)
        plan = Plan(definition.name, {**definition.options, "routing_key": routing_key})
        return plan.job(definition.payload((event,), {}), definition.arguments_hash)

    async def _subscriptions(self, storage: Storage, *, inside: bool) -> list[Subscription]:
        """Our own, and those of others that are on record, read at most once a second. Ours are put there first, but not
        from inside a caller's transaction, which may have locked the store."""
        if not inside and storage not in self._told:
            await self.record_subscriptions(storage)
        read_at, known = self._heard.get(storage, (0.0, []))
        if not known or monotonic() - read_at > _HEARD_FOR:
            known = await recorded(storage)
            self._heard[storage] = (monotonic(), known)
        ours = self._app.definitions()
        return [*self._own_subscriptions(), *(each for each in known if each.task not in ours)]

    async def record_subscriptions(self, storage: Storage) -> None:
        """Put what this app's tasks have subscribed to on record."""
        await record(storage, self._own_subscriptions(), self._app.definitions())
        self._told.add(storage)

    def _own_subscriptions(self) -> list[Subscription]:
        definitions = self._app.definitions()
        plans = {each.name: Plan(each.name, each.options) for each in definitions.values() if each.subscriptions}
        return subscriptions_of(definitions, plans)

    def single(self, call: object) -> NewJob:
        """The job of one call that is stored by somebody else."""
        if not isinstance(call, Call):
            raise InvalidCall(f"a call is needed, task.call(…), not {type(call).__name__}")
        bound = bound_to(self._app, call)
        if bound.plan.connection is not None:
            raise InvalidCall("this call is stored with its job; connection= cannot be given")
        return bound.plan.job(call._payload, bound.definition.arguments_hash)

    def continued(self, flow: Flow[Any], job_id: str, chain_id: str) -> tuple[NewJob, ...]:
        """The jobs that go on with a job's chain."""
        calls = [node._call for node in flow._nodes]
        bounds = [bound_to(self._app, call) for call in calls]
        if _one_connection(None, bounds) is not None:
            raise InvalidCall("Continue takes calls without connection=: they are stored with the job's completion")
        _check_handed(flow._nodes, bounds)
        _check_sizes(calls, bounds)
        jobs = linked(flow._nodes, _jobs(calls, bounds, _ids(calls)), chain_id)
        if any(job_id in parents_of(job.after) for job in jobs):
            raise InvalidCall(
                "Continue with a call after= the job itself would wait for ever: a job is over when its chain is; without "
                "after= it begins when this job has ended"
            )
        return tuple(jobs)


class Work(NamedTuple):
    """What `app.enqueue` was given: calls, their order, and which of their handles it gives."""

    calls: Sequence[Call[Any]]
    nodes: Sequence[Node[Any]]
    given: Callable[[list[JobHandle[Any]]], Any]


def work_of(work: object) -> Work:
    """What `app.enqueue` was given; InvalidCall when it is nothing that can be enqueued."""
    if isinstance(work, Call):
        return Work([work], (), _first)
    if isinstance(work, Graph):
        return Work([node._call for node in work._nodes], work._nodes, _all)
    if isinstance(work, Flow):
        if work._many and not work._nodes:
            raise InvalidCall("a group of no calls has no job to wait for; give it .then(task)")
        return Work([node._call for node in work._nodes], work._nodes, GroupHandle if work._many else _last)
    if isinstance(work, str | bytes) or not isinstance(work, Iterable):
        raise InvalidCall(
            f"app.enqueue takes task.call(…), a list of such calls, a flow or a graph, not {type(work).__name__}"
        )
    calls = list(work)
    for position, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidCall(
                f"app.enqueue takes calls; number {position} of the list is {type(call).__name__}. Use task.call(…)"
            )
    return Work(calls, (), _all)


def _first(handles: list[JobHandle[Any]]) -> JobHandle[Any]:
    return handles[0]


def _last(handles: list[JobHandle[Any]]) -> JobHandle[Any]:
    return handles[-1]


def _all(handles: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
    return handles


def bound_to(app: Holdfast, call: Call[Any]) -> Bound:
    """Where a call leads in this app."""
    task = call._task
    if task._bound is not None and task._bound.app is app and task._bound.generation == app._generation():
        return task._bound
    return app._bind(task._declared, task._options)


def _one_connection(connection: object, bounds: Sequence[Bound]) -> object:
    given = [each for each in (connection, *(bound.plan.connection for bound in bounds)) if each is not None]
    if any(each is not given[0] for each in given):
        raise InvalidCall("the calls of one enqueue name different connections; use one of them for all")
    if given and any(bound.plan.connection is None for bound in bounds) and connection is None:
        raise InvalidCall(
            "some calls of one enqueue name a connection and some do not; give app.enqueue(…, connection=)"
        )
    return given[0] if given else None


def _check_handed(nodes: Sequence[Node[Any]], bounds: Sequence[Bound]) -> None:
    for node, bound in zip(nodes, bounds, strict=True):
        if node._takes is not None:
            bound.definition.check_handed("the result of what is before it")


def _chunks(
    calls: Sequence[Call[Any]], bounds: Sequence[Bound], ids: Sequence[str]
) -> Iterable[tuple[int, list[NewJob]]]:
    """The jobs of a long list, made as they are asked for, where making them cannot fail."""
    starts = range(0, len(calls), ENQUEUE_CHUNK)
    if any(bound.plan.hashes_arguments for bound in bounds):
        jobs = _jobs(calls, bounds, ids)
        return [(start, jobs[start : start + ENQUEUE_CHUNK]) for start in starts]
    parts = ((start, slice(start, start + ENQUEUE_CHUNK)) for start in starts)
    return ((start, _jobs(calls[part], bounds[part], ids[part])) for start, part in parts)


def _jobs(calls: Sequence[Call[Any]], bounds: Sequence[Bound], ids: Sequence[str]) -> list[NewJob]:
    return [
        bound.plan.job(call._payload, bound.definition.arguments_hash, id)
        for call, bound, id in zip(calls, bounds, ids, strict=True)
    ]


def _ids(calls: Sequence[Call[Any]]) -> list[str]:
    """An id for each; those of an enqueue that failed again. A call that stands there several times is several jobs."""
    used: Counter[Call[Any]] = Counter()
    fresh = iter(new_ids(len(calls)))
    if len(set(calls)) == len(calls) and not any(call._ids for call in calls):
        for call, id in zip(calls, fresh, strict=True):
            call._ids.append(id)
        return [call._ids[0] for call in calls]
    ids = []
    for call in calls:
        number = used[call]
        used[call] += 1
        if number == len(call._ids):
            call._ids.append(next(fresh))
        ids.append(call._ids[number])
    return ids


def _check_sizes(calls: Sequence[Call[Any]], bounds: Sequence[Bound]) -> None:
    for call, bound in zip(calls, bounds, strict=True):
        definition = bound.definition
        limit = definition.max_bytes
        if len(call._payload) * 4 > limit and (size := len(call._payload.encode())) > limit:
            raise InvalidCall(f"{definition.name}: the arguments together have {size} bytes of JSON, more than {limit}")


def _tell_stored(error: HoldfastError, handles: list[JobHandle[Any]], total: int, *, inside: bool) -> None:
    error.stored = handles  # type: ignore[attr-defined]
    if total > ENQUEUE_CHUNK and not inside:
        error.add_note(
            f"{len(handles)} of {total} jobs are stored (error.stored has their handles); "
            "repeating app.enqueue with the same calls is safe and stores the others"
        )


async def _wait_or_refuse(storage: Storage, full: Full, pause: float) -> float:
    if not full.waits:
        raise QueueFull(f"{full} and takes no more now") from None
    await room(storage, pause)
    return min(pause * 2, _LONGEST_PAUSE)
