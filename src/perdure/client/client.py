"""Enqueues jobs: one, many, a flow, an event, or jobs inside a caller's own transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.record import NewJob, Record
from ..core.validation import ENQUEUE_CHUNK
from ..errors import InvalidCall, PerdureError, QueueFull
from ..flow.build_jobs import gathering_job, link_jobs
from ..flow.graph import Flow, Graph, PlannedCall
from ..storage.contract import EnqueueResult, QueueAtCapacity, Storage
from ..storage.outbox import Late
from ..storage.rules.records import owners_among, parents_of, redirect_parents
from ..tasks.task import Call, Task
from .call_list import CallList, bound_to
from .current_handler import waiting_for_store
from .group_commit import wait_for_room
from .handle import GroupHandle, JobHandle
from .publisher import Publisher

if TYPE_CHECKING:
    from ..tasks.definition import TaskDefinition
    from .app_runtime import AppRuntime

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_TURNS = 4  # turns of the event loop within which a store sends the jobs of a call

Chunk = tuple[int, list[EnqueueResult]]  # where it begins in its list, and the store's results


class Client:
    """The enqueueing side of an app."""

    def __init__(self, runtime: AppRuntime) -> None:
        self._runtime = runtime
        self.publisher = Publisher(runtime)

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs, all or none. Waits while a full queue has the policy "wait"."""
        runtime = self._runtime
        loop = runtime.here("enqueue without connection=tx") or await runtime.loops.get()
        pause = _FIRST_PAUSE
        loop.acquire()
        try:
            while True:
                try:
                    with waiting_for_store():
                        return await loop.group_commit.enqueue(jobs)
                except QueueAtCapacity as full:
                    pause = await _wait_or_refuse(loop.storage, full, pause)
        finally:
            if loop.release_nowait():
                await loop.storage.close()

    async def enqueue_in_transaction(self, connection: object, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs inside the caller's transaction; they exist when it commits."""
        from ..transactional.enqueue import enqueue_in_transaction

        return await enqueue_in_transaction(self._runtime.loops, connection, jobs)

    async def enqueue(
        self, calls: Sequence[Call[Any]], connection: object, order: Sequence[PlannedCall] = ()
    ) -> list[JobHandle[Any]]:
        """Store calls, all or none up to 500, above that in chunks. Their ids stay until all are stored, so that
        repeating the same calls after an error is safe. `order`: what each call waits for, if they have an order."""
        call_list = CallList(self._runtime, calls, order)
        transaction = call_list.connection(connection)
        stored: list[Chunk] = []
        try:
            if len(call_list) <= ENQUEUE_CHUNK or order or transaction is not None:
                jobs = call_list.jobs()
                await self._enqueue_chunks_in_order(link_jobs(order, jobs) if order else jobs, transaction, stored)
            else:
                await self._enqueue_chunks_overlapped(call_list, stored)
        except BaseException as error:
            call_list.keep_ids()
            if isinstance(error, PerdureError):
                _note_stored(error, _handles(call_list, stored), len(call_list), inside=transaction is not None)
            raise
        call_list.forget_ids()
        return _handles(call_list, stored)

    async def _enqueue_chunks_in_order(self, jobs: Sequence[NewJob], transaction: object, stored: list[Chunk]) -> None:
        owners: dict[str, str] = {}  # of jobs that were duplicates
        for start in range(0, len(jobs), ENQUEUE_CHUNK):
            part = redirect_parents(owners, jobs[start : start + ENQUEUE_CHUNK])
            if transaction is None:
                results = await self.enqueue_jobs(part)
            else:
                results = await self.enqueue_in_transaction(transaction, part)
            owners |= owners_among(part, results)
            stored.append((start, results))

    async def _enqueue_chunks_overlapped(self, calls: CallList, stored: list[Chunk]) -> None:
        """Store chunks of a plain list. The next chunk is built while the store writes the last one, where the store keeps
        their order."""
        storage = await self._runtime.storage()
        under_way: deque[tuple[int, asyncio.Task[list[EnqueueResult]]]] = deque()
        handles_to_build: deque[Iterator[None]] = deque()

        async def finish_first() -> None:
            while handles_to_build:
                for _ in handles_to_build.popleft():
                    await asyncio.sleep(0)
            start, storing = under_way.popleft()
            stored.append((start, await storing))

        try:
            for start, jobs in _chunks(calls, _chunk_size(calls, storage)):
                if len(under_way) == storage.bulk_in_flight:
                    await finish_first()
                under_way.append((start, asyncio.create_task(self.enqueue_jobs(jobs), name="perdure list")))
                handles_to_build.append(calls.prebuild_handles(start, len(jobs)))
                await _yield_to_store(storage)
            while under_way:
                await finish_first()
        except asyncio.CancelledError:
            for _, storing in under_way:
                storing.cancel()
            raise
        finally:
            for start, storing in under_way:  # after a failure, chunks that were under way may be stored too
                if not storing.cancelling():
                    with suppress(Exception):
                        stored.append((start, await storing))

    async def publish(
        self, topic: str, event: object, routing_key: str | None, connection: object
    ) -> list[JobHandle[Any]]:
        """Store a job for each subscription to the topic, all or none."""
        jobs = await self.publisher.jobs_for(topic, event, routing_key, inside=connection is not None)
        if not jobs:
            return []
        if connection is None:
            results = await self.enqueue_jobs(jobs)
        else:
            results = await self.enqueue_in_transaction(connection, jobs)
        definitions = self._runtime.app.definitions()
        return [self.handle_of(result, definitions.get(job.task)) for job, result in zip(jobs, results, strict=True)]

    async def signal(self, queues: Sequence[str]) -> None:
        """Wake the workers of these queues."""
        loops = self._runtime.loops
        if loops.outboxes is None:
            await (await self._runtime.storage()).signal(queues)
            return
        await (await loops.outboxes.get()).signal(queues)  # the relay wakes the workers when it has moved the jobs
        if (loop := loops.here()) is not None:
            await loop.storage.signal(queues)

    def handle_of(self, result: EnqueueResult, definition: TaskDefinition | None) -> JobHandle[Any]:
        late = isinstance(result, Late)
        return JobHandle(self._runtime, result.id, definition, result.duplicate, result.dropped, late)

    def job_of_call(self, call: object) -> NewJob:
        """The job of one call that somebody else stores."""
        if not isinstance(call, Call):
            raise InvalidCall(f"a call is needed, task.call(…), not {type(call).__name__}")
        bound = bound_to(self._runtime.app, call)
        if bound.plan.connection is not None:
            raise InvalidCall("this call is stored with its job; connection= cannot be given")
        return bound.job(call._payload)

    def jobs_to_continue(self, flow: Flow[Any], record: Record) -> tuple[NewJob, ...]:
        """The jobs that go on with a job's chain, which ends with the last of them."""
        chain_id = record.chain_id or record.id
        plan = flow._plan
        calls = CallList(self._runtime, [planned.call for planned in plan.calls], plan.calls)
        if calls.connection(None) is not None:
            raise InvalidCall("Continue takes calls without connection=: they are stored with the job's completion")
        jobs = link_jobs(plan.calls, calls.jobs(), chain_id)
        if any(record.id in parents_of(job.after) for job in jobs):
            raise InvalidCall(
                "Continue with a call after= the job itself would wait for ever: a job is over when its chain is; without "
                "after= it begins when this job has ended"
            )
        if plan.many:
            jobs.append(gathering_job(record, jobs, chain_id))
        return tuple(jobs)


class Work(NamedTuple):
    """The argument of `app.enqueue`: calls, their order, and a function that picks the handles to return."""

    calls: Sequence[Call[Any]]
    order: Sequence[PlannedCall]
    pick: Callable[[list[JobHandle[Any]]], Any]


def work_of(work: object) -> Work:
    """Read the argument of `app.enqueue`; InvalidCall when it is nothing that can be enqueued."""
    if isinstance(work, Call):
        return Work([work], (), _first)
    if isinstance(work, Graph | Flow):
        plan = work._plan
        if isinstance(work, Flow) and plan.many and not plan.calls:
            raise InvalidCall("a group of no calls has no job to wait for; give it .then(task)")
        pick = _all if isinstance(work, Graph) else GroupHandle.of if plan.many else _last
        return Work([planned.call for planned in plan.calls], plan.calls, pick)
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
    """Advice for somebody who gave something that cannot be enqueued."""
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
    """The jobs of a long list, built when they are needed if building them cannot fail."""
    starts = range(0, len(calls), size)
    if calls.may_fail:
        jobs = calls.jobs()
        return [(start, jobs[start : start + size]) for start in starts]
    return ((start, calls.jobs(start, start + size)) for start in starts)


def _handles(calls: CallList, stored: Sequence[Chunk]) -> list[JobHandle[Any]]:
    return [handle for start, results in stored for handle in calls.handles(start, results)]


async def _yield_to_store(storage: Storage) -> None:
    """Let the store send the last chunk before the next one is built."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    if storage.bulk_yield_seconds:
        await asyncio.sleep(storage.bulk_yield_seconds)


def _note_stored(error: PerdureError, handles: list[JobHandle[Any]], total: int, *, inside: bool) -> None:
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
