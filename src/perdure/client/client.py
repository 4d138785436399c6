"""Putting jobs on record: one, many, or inside a caller's own transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from ..core.record import NewJob, Record
from ..core.sizes import ENQUEUE_CHUNK
from ..errors import InvalidCall, PerdureError, QueueFull
from ..flow.build_jobs import gathering, linked
from ..flow.graph import Flow, Graph, Node
from ..flow.subscriptions import Subscription, checked_address, event_text, record, recorded, subscriptions_of
from ..handler.context import waiting_for_store
from ..storage.contract import EnqueueResult, QueueAtCapacity, Storage
from ..storage.outbox import Late
from ..storage.rules.records import owners_among, parents_of, redirect_parents
from ..tasks.options import JobTemplate
from ..tasks.task import Call, Task
from .call_list import CallList, bound_to
from .group_commit import enqueue_with_retry, wait_for_room
from .handle import GroupHandle, JobHandle

if TYPE_CHECKING:
    from ..app import Perdure

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_TURNS = 4  # of the loop, within which a store sends what it was given
_HEARD_FOR = 1.0  # seconds for which the list of subscriptions is believed


Chunk = tuple[int, list[EnqueueResult]]  # where it begins in its list, and what became of it


class Client:
    """The enqueueing side of an app."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self._heard: WeakKeyDictionary[Storage, tuple[float, list[Subscription]]] = WeakKeyDictionary()
        self._told: WeakSet[Storage] = WeakSet()  # those that have our subscriptions on record

    async def enqueue_one(self, job: NewJob) -> EnqueueResult:
        """Store one job, together with others that are asked for at the same time; waits while its queue says so."""
        place = self._app._place_here("enqueue without connection=tx") or await self._app._places.get()
        pause = _FIRST_PAUSE
        place.acquire()
        try:
            while True:
                try:
                    with waiting_for_store():
                        return await place.gatherer.enqueue(job)
                except QueueAtCapacity as full:
                    pause = await _wait_or_refuse(place.storage, full, pause)
        finally:
            if place.release_nowait():
                await place.storage.close()

    async def enqueue_all(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a list, all or none. One alone goes with others that come alone."""
        if len(jobs) == 1:
            return [await self.enqueue_one(jobs[0])]
        place = await self._app._place("enqueue without connection=tx")
        pause = _FIRST_PAUSE
        place.acquire()
        try:
            while True:
                try:
                    with waiting_for_store():
                        return await enqueue_with_retry(place.storage, jobs)
                except QueueAtCapacity as full:
                    pause = await _wait_or_refuse(place.storage, full, pause)
        finally:
            await place.release()

    async def enqueue_in_transaction(self, connection: object, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs inside the caller's transaction; they exist when it commits."""
        from ..transactional.enqueue import enqueue_in_transaction

        return await enqueue_in_transaction(self._app._places, connection, jobs)

    async def enqueue(
        self, calls: Sequence[Call[Any]], connection: object, nodes: Sequence[Node[Any]] = ()
    ) -> list[JobHandle[Any]]:
        """Store calls, all or none up to 500, above that in chunks. Their ids stay until all are stored, so that
        repeating the same calls after an error is safe. `nodes`: their order, if they have one."""
        given = CallList(self._app, calls, nodes)
        where = given.connection(connection)
        stored: list[Chunk] = []
        try:
            if len(given) <= ENQUEUE_CHUNK or nodes or where is not None:
                jobs = given.jobs()
                await self._enqueue_chunks_in_order(linked(nodes, jobs) if nodes else jobs, where, stored)
            else:
                await self._enqueue_chunks_overlapped(given, stored)
        except BaseException as error:
            given.keep_ids()
            if isinstance(error, PerdureError):
                _tell_stored(error, _handles(given, stored), len(given), inside=where is not None)
            raise
        given.forget_ids()
        return _handles(given, stored)

    async def _enqueue_chunks_in_order(self, jobs: Sequence[NewJob], where: object, stored: list[Chunk]) -> None:
        owners: dict[str, str] = {}  # of jobs that were duplicates
        for start in range(0, len(jobs), ENQUEUE_CHUNK):
            part = redirect_parents(owners, jobs[start : start + ENQUEUE_CHUNK])
            placed = await (self.enqueue_all(part) if where is None else self.enqueue_in_transaction(where, part))
            owners |= owners_among(part, placed)
            stored.append((start, placed))

    async def _enqueue_chunks_overlapped(self, given: CallList, stored: list[Chunk]) -> None:
        """Chunks of a plain list, the next made ready while the last is stored, where the store keeps their order."""
        storage = await self._app._storage()
        ahead = storage.bulk_in_flight
        under_way: deque[tuple[int, asyncio.Task[list[EnqueueResult]]]] = deque()
        expected: deque[Iterator[None]] = deque()  # handles that are still to be made

        async def next_stored() -> None:
            while expected:
                for _ in expected.popleft():
                    await asyncio.sleep(0)
            start, storing = under_way.popleft()
            stored.append((start, await storing))

        try:
            for start, jobs in _chunks(given, _chunk_size(given, storage)):
                if len(under_way) == ahead:
                    await next_stored()
                under_way.append((start, asyncio.create_task(self.enqueue_all(jobs), name="perdure list")))
                expected.append(given.prebuild_handles(start, len(jobs)))
                await _yield_to_store(storage)  # while the next is made
            while under_way:
                await next_stored()
        except asyncio.CancelledError:
            for _, storing in under_way:
                storing.cancel()
            raise
        finally:
            for start, storing in under_way:  # after a failure: what was on its way may be stored too
                if not storing.cancelling():
                    with suppress(Exception):
                        stored.append((start, await storing))

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
        placed = await (self.enqueue_all(jobs) if connection is None else self.enqueue_in_transaction(connection, jobs))
        known = self._app.definitions()
        return [
            JobHandle(self._app, each.id, known.get(job.task), each.duplicate, each.dropped, isinstance(each, Late))
            for job, each in zip(jobs, placed, strict=True)
        ]

    def _event_job(self, subscription: Subscription, event: object, text: str, routing_key: str | None) -> NewJob:
        definition = self._app.definitions().get(subscription.task)
        if definition is None:
            return subscription.job(text, routing_key)
        plan = JobTemplate(definition.name, {**definition.options, "routing_key": routing_key})
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
        plans = {each.name: JobTemplate(each.name, each.options) for each in definitions.values() if each.subscriptions}
        return subscriptions_of(definitions, plans)

    def single(self, call: object) -> NewJob:
        """The job of one call that is stored by somebody else."""
        if not isinstance(call, Call):
            raise InvalidCall(f"a call is needed, task.call(…), not {type(call).__name__}")
        bound = bound_to(self._app, call)
        if bound.plan.connection is not None:
            raise InvalidCall("this call is stored with its job; connection= cannot be given")
        return bound.plan.job(call._payload, bound.definition.arguments_hash)

    def continued(self, flow: Flow[Any], record: Record) -> tuple[NewJob, ...]:
        """The jobs that go on with a job's chain, which ends with the last of them."""
        chain_id = record.chain_id or record.id
        calls = CallList(self._app, [node._call for node in flow._nodes], flow._nodes)
        if calls.connection(None) is not None:
            raise InvalidCall("Continue takes calls without connection=: they are stored with the job's completion")
        jobs = linked(flow._nodes, calls.jobs(), chain_id)
        if any(record.id in parents_of(job.after) for job in jobs):
            raise InvalidCall(
                "Continue with a call after= the job itself would wait for ever: a job is over when its chain is; without "
                "after= it begins when this job has ended"
            )
        if flow._many:
            jobs.append(gathering(record, jobs, chain_id))
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
        return Work([node._call for node in work._nodes], work._nodes, GroupHandle.of if work._many else _last)
    if isinstance(work, str | bytes) or not isinstance(work, Iterable):
        takes = "app.enqueue takes task.call(…), a list of such calls, a flow or a graph"
        raise InvalidCall(f"{takes}, not {type(work).__name__}{_instead_of(work)}")
    calls = list(work)
    for position, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidCall(
                f"app.enqueue takes calls; number {position} of the list is {type(call).__name__}. Use task.call(…)"
            )
    return Work(calls, (), _all)


def _instead_of(work: object) -> str:
    """What to write instead of something that cannot be enqueued."""
    if isinstance(work, Task):
        name = work._spelled()
        return f"; write app.enqueue({name}.call(…)) or {name}.enqueue(…)"
    if isinstance(work, Coroutine):
        work.close()  # it will not be awaited
        return "; what task.enqueue(…) gives is awaited by itself: await task.enqueue(…)"
    if callable(work):
        return "; make a task of the function first, with @app.task above it"
    return ""


def _first(handles: list[JobHandle[Any]]) -> JobHandle[Any]:
    return handles[0]


def _last(handles: list[JobHandle[Any]]) -> JobHandle[Any]:
    return handles[-1]


def _all(handles: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
    return handles


def _chunk_size(calls: CallList, storage: Storage) -> int:
    """Chunks of one size, as many as may be under way at once or a multiple of that: none is stored alone at the end."""
    most = storage.bulk_chunk if calls.light else ENQUEUE_CHUNK
    rounds = ceil(len(calls) / (most * storage.bulk_in_flight))
    return max(min(most, ENQUEUE_CHUNK), ceil(len(calls) / (rounds * storage.bulk_in_flight)))


def _chunks(calls: CallList, size: int) -> Iterable[tuple[int, Sequence[NewJob]]]:
    """The jobs of a long list, made as they are asked for, where making them cannot fail."""
    starts = range(0, len(calls), size)
    if calls.may_fail:
        jobs = calls.jobs()
        return [(start, jobs[start : start + size]) for start in starts]
    return ((start, calls.jobs(start, start + size)) for start in starts)


def _handles(calls: CallList, stored: Sequence[Chunk]) -> list[JobHandle[Any]]:
    return [handle for start, placed in stored for handle in calls.handles(start, placed)]


async def _yield_to_store(storage: Storage) -> None:
    """Let what a store was given be on its way."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    if storage.bulk_yield_seconds:
        await asyncio.sleep(storage.bulk_yield_seconds)


def _tell_stored(error: PerdureError, handles: list[JobHandle[Any]], total: int, *, inside: bool) -> None:
    error.stored = handles  # type: ignore[attr-defined]
    if total > ENQUEUE_CHUNK and not inside:
        error.add_note(
            f"{len(handles)} of {total} jobs are stored (error.stored has their handles); "
            "repeating app.enqueue with the same calls is safe and stores the others"
        )


async def _wait_or_refuse(storage: Storage, full: QueueAtCapacity, pause: float) -> float:
    if not full.waits:
        raise QueueFull(f"{full} and takes no more now") from None
    await wait_for_room(storage, pause)
    return min(pause * 2, _LONGEST_PAUSE)
