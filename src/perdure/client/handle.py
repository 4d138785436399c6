"""A handle: a job's id together with where to ask about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import msgspec

from ..core.clock import SECOND, Duration, micros_of
from ..core.ids import id_text
from ..core.job import FINAL, Job, JobId, State
from ..core.lifecycle import DELETED, Cancelled
from ..core.record import Record, faults_of, job_of
from ..core.verb import verb
from ..errors import JobCancelled, JobDead, JobSkipped, NotFound, ResultTimeout

if TYPE_CHECKING:
    from .._sync import SyncJobHandle
    from ..tasks.definition import TaskDefinition
    from .app_runtime import AppRuntime

R_co = TypeVar("R_co", covariant=True)

FIRST_LOOK = 1.0  # seconds
OPENED_WITHIN = 3.0  # seconds that the store gets to open, however short the timeout


class JobHandle(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """A job that was enqueued: wait for its result, read it, watch it, cancel it.

    `duplicate`: its unique key was taken, this is the job that has it. `dropped`: its queue was full and dropped it.
    """

    _runtime: AppRuntime
    _id: str
    _definition: TaskDefinition | None = None
    duplicate: bool = False
    dropped: bool = False
    _late: bool = False  # it waits in an outbox: that it is not stored yet means nothing

    @property
    def id(self) -> JobId:
        """The job's id."""
        return UUID(self._id)

    @property
    def sync(self) -> SyncJobHandle[R_co]:
        """The blocking forms of its verbs."""
        from .._sync import SyncJobHandle

        return SyncJobHandle(self)

    @verb
    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the job, and those that go on with its chain, to end and give the result. Raises JobDead, JobCancelled,
        JobSkipped when it ended otherwise, ResultTimeout when it has not ended in time, NotFound when it is gone."""
        until = None if timeout is None else asyncio.get_running_loop().time() + micros_of(timeout, "timeout") / SECOND
        job: JobHandle[Any] = self
        while True:
            record = await job._await_end(timeout, until)
            if record.state is not State.SUCCEEDED or record.next_id is None:
                return job._result_of(record)  # type: ignore[no-any-return]
            job = JobHandle(self._runtime, record.next_id)

    async def _await_end(self, timeout: Duration | None, until: float | None) -> Record:
        async with aclosing(self._watch_records(timeout, until)) as seen:
            async for record in seen:
                if record.state in FINAL:
                    return record
        raise self._gone()

    @verb
    async def refresh(self) -> Job:
        """The job as it is now; NotFound when it is gone."""
        (record,) = await (await self._runtime.storage()).get([self._id])
        if record is None or record.hidden:
            raise self._gone()
        return job_of(record)

    @verb
    async def cancel(self) -> bool:
        """Cancel the job; False when it had ended already or is gone. Running code learns it through `ctx.lost`."""
        from .transitions import transition

        return await transition(await self._runtime.storage(), [self._id], Cancelled()) == 1

    @verb
    def watch(self, *, timeout: Duration | None = None) -> AsyncIterator[Job]:
        """The job at once and at every change until it is final: `async for seen in job.watch(): …`.
        ResultTimeout when it has not ended in time."""
        return self._jobs(timeout)

    def __repr__(self) -> str:
        marks = "".join(f" {mark}" for mark in ("duplicate", "dropped") if getattr(self, mark))
        return f"<JobHandle {self._id}{marks}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    @staticmethod
    def _spelled() -> str:
        return "job"

    async def _jobs(self, timeout: Duration | None) -> AsyncIterator[Job]:
        async with aclosing(self._watch_records(timeout)) as seen:
            async for record in seen:
                yield job_of(record)

    async def _watch_records(
        self, timeout: Duration | None, until: float | None = None
    ) -> AsyncGenerator[Record, None]:
        """The job at every change until it is final. `until`: when the timeout is over, if it began before."""
        if self.dropped:
            raise self._gone()
        loop = asyncio.get_running_loop()
        seconds = 0.0 if timeout is None else micros_of(timeout, "timeout") / SECOND
        deadline = until if timeout is None or until is not None else loop.time() + seconds
        state: State | None = None
        try:
            async with asyncio.timeout_at(_at_least(deadline, OPENED_WITHIN)):
                loop_runtime = await self._runtime.open()
        except TimeoutError:
            raise self._not_yet(state, seconds) from None
        # a job that has ended is returned, however short the timeout
        until_first_read = _at_least(deadline, FIRST_LOOK)
        async with aclosing(loop_runtime.watcher.changes(self._id)) as changes:
            while True:
                try:
                    async with asyncio.timeout_at(until_first_read):
                        record = await anext(changes)
                except TimeoutError:
                    raise self._not_yet(state, seconds) from None
                if record is None and self._late and state is None:
                    continue
                if record is None or _was_deleted(record):
                    raise self._gone()
                state, until_first_read = record.state, deadline
                yield record
                if state in FINAL:
                    return

    def _result_of(self, record: Record) -> Any:
        match record.state:
            case State.SUCCEEDED:
                definition = self._definition or self._runtime.app.definitions().get(record.task)
                return job_of(record).result if definition is None else definition.result_of(record.result)
            case State.SKIPPED:
                raise JobSkipped(f"job {self._id} was skipped: {record.reason or 'no reason given'}", job_of(record))
            case State.DEAD:
                raise JobDead(f"job {self._id} of {record.task} is dead: {_why(record)}", job_of(record))
            case _:
                raise JobCancelled(
                    f"job {self._id} was cancelled: {record.reason or 'no reason given'}", job_of(record)
                )

    def _not_yet(self, state: State | None, seconds: float) -> ResultTimeout:
        told = f"is {state} after" if state else "was not seen within"
        blocked = "it waits for other jobs: they run yet, or one of them is dead"
        then = blocked if state is State.BLOCKED else "it goes on by itself"
        if state is State.READY:
            then = "no worker has begun it yet; it stays on record until one does"
        return ResultTimeout(f"job {self._id} {told} {seconds:g} s; {then}")

    def _gone(self) -> NotFound:
        if self.dropped:
            return NotFound(f"job {self._id} was dropped because its queue was full; it was never on record")
        if self._late:
            return NotFound(
                f"job {self._id} is not on record: a relay moves it there from the outbox after your commit, unless its "
                "unique key is taken"
            )
        return NotFound(
            f"job {self._id} is not on record: deleted, pruned, enqueued in a transaction that has not committed, or the id "
            "is wrong"
        )


class GroupHandle(JobHandle[Any], eq=False):
    """The handle of a group: its result is the list of its jobs' results, and `cancel` cancels them all. Its id is that of
    its first job, which `refresh` and `watch` show; `jobs` has the handle of each."""

    jobs: tuple[JobHandle[Any], ...] = ()

    @classmethod
    def of(cls, jobs: Sequence[JobHandle[Any]]) -> GroupHandle:
        first = jobs[0]
        return cls(first._runtime, first._id, None, first.duplicate, first.dropped, first._late, tuple(jobs))

    @verb
    async def result(self, *, timeout: Duration | None = None) -> list[Any]:
        """Wait for all to end and give their results; raises for the first that did not succeed."""
        waiting = [asyncio.ensure_future(job.result(timeout=timeout)) for job in self.jobs]
        try:
            return list(await asyncio.gather(*waiting))
        finally:
            for each in waiting:  # after one has failed nobody asks for the others
                each.cancel()

    @verb
    async def cancel(self) -> bool:
        """Cancel all that have not ended; False when there was none."""
        from .transitions import transition

        return await transition(await self._runtime.storage(), [job._id for job in self.jobs], Cancelled()) > 0


def ids_of(refs: Iterable[object]) -> list[str]:
    """The ids of jobs given as ids, handles or jobs."""
    return [id_text(ref) for ref in each_of(refs)]


def each_of(refs: Iterable[object]) -> list[object]:
    """These, the jobs of a group in its place."""
    return [job for ref in refs for job in (ref.jobs if isinstance(ref, GroupHandle) else (ref,))]


def _at_least(deadline: float | None, seconds: float) -> float | None:
    """A deadline that leaves at least so many seconds from now on."""
    return None if deadline is None else max(deadline, asyncio.get_running_loop().time() + seconds)


def _was_deleted(record: Record) -> bool:
    """Whether somebody deleted it before it ended well. What its retention deleted when it ended can be asked how it did."""
    return record.hidden and record.state is State.CANCELLED and record.reason == DELETED


def _why(record: Record) -> str:
    """The reason, and the last error if it tells more: that of `raise Dead(reason)` does not."""
    faults = faults_of(record.errors)
    more = faults and faults[-1].message != record.reason
    return f"{record.reason}; last: {faults[-1].kind}: {faults[-1].message}" if more else f"{record.reason}"
