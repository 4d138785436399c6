"""Turns the calls of a flow into jobs: each waits for those of its parents, all in one chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ..core.encoding.codec import encode
from ..core.ids import new_id
from ..core.record import NewJob, Record
from ..errors import InvalidCall
from ..tasks.options import parents_text

if TYPE_CHECKING:
    from .graph import PlannedCall

TAKES = "perdure.takes"  # in a job's meta: what it gets of its parents as its first argument
RESULTS = "results"  # what it takes for its own result, without its handler being called


def link_jobs(
    planned_calls: Sequence[PlannedCall], jobs: Sequence[NewJob], chain_id: str | None = None
) -> list[NewJob]:
    """The jobs of these calls, in their order, waiting for one another."""
    ids = {planned: job.id for planned, job in zip(planned_calls, jobs, strict=True)}
    first = chain_id or jobs[0].id
    return [_link(planned, job, ids, first) for planned, job in zip(planned_calls, jobs, strict=True)]


def _link(planned: PlannedCall, job: NewJob, ids: dict[PlannedCall, str], chain_id: str) -> NewJob:
    parents = [ids[parent] for parent in planned.after]
    if planned.takes == "list" and not parents:  # a group of none
        payload = with_argument(job.payload, planned.call._task._first_parameter(), "[]")
        return msgspec.structs.replace(job, payload=payload, chain_id=chain_id)
    before = [] if job.after is None else msgspec.json.decode(job.after, type=list[str])
    if planned.takes is not None and before:
        raise InvalidCall(f"{job.task}: then(…) hands it the result of what is before it; after= cannot be given too")
    after = list(dict.fromkeys([*before, *parents]))
    return msgspec.structs.replace(
        job,
        after=parents_text(job.task, after),
        waits=len(after),
        chain_id=chain_id,
        meta=job.meta if planned.takes is None else _with_takes(job.meta, planned.takes),
    )


def gathering_job(record: Record, jobs: Sequence[NewJob], chain_id: str) -> NewJob:
    """The job with which a chain ends that goes on with a group: its result is the list of theirs. It is of the task, queue
    and routing key of the job that went on, so that whoever ran that one takes it, and its handler is not called for it."""
    ids = [job.id for job in jobs]
    return NewJob(
        id=new_id(),
        task=record.task,
        payload="{}",
        queue=record.queue,
        priority=record.priority,
        max_attempts=record.max_attempts,
        timeout=record.timeout,
        lease=record.lease,
        backoff=record.backoff,
        retention=record.retention,
        dead_retention=record.dead_retention,
        tenant=record.tenant,
        routing_key=record.routing_key,
        meta=_with_takes(None, RESULTS),
        chain_id=chain_id,
        after=parents_text(record.task, ids),
        waits=len(ids),
    )


def with_argument(payload: str, name: str, value: str) -> str:
    """The payload with one more argument, a JSON text, kept bit by bit."""
    rest = payload.strip()[1:].lstrip()
    return f"{{{encode(name, 'a name')}:{value}{'' if rest.startswith('}') else ','}{rest}"


def _with_takes(meta: str | None, takes: str) -> str:
    marks = {} if meta is None else msgspec.json.decode(meta, type=dict[str, str])
    return encode({**marks, TAKES: takes}, "meta")


def takes_of(meta: str | None) -> str | None:
    """What a job gets of its parents as its first argument."""
    if meta is None or TAKES not in meta:
        return None
    return msgspec.json.decode(meta, type=dict[str, str]).get(TAKES)
