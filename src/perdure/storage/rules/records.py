"""How jobs become records and how records change, in one place for every store that works on records in Python.

Nothing here reads or writes a store. `plan` decides which new jobs would be stored, `record_of` builds their records,
`write_claim` and `write_change` write a claim and an accepted change to a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from ...core.job import FINAL, State
from ...core.lifecycle import Change, HoldGuard, KeyMove
from ...core.record import NewJob, Record
from ...core.retention import HIDDEN_FOR
from ...errors import PerdureError, QueueFull, UnknownParent
from ..contract import Claim, EnqueueResult, MissingParent, QueueAtCapacity, QueueSettings
from .fairness import SHARE

KeyName = tuple[bool, str]  # kept apart from the rows (scopes any and window)?, unique_key


# ---- enqueue ---------------------------------------------------------------------------------------
def plan(
    jobs: Sequence[NewJob],
    known: Container[str],
    owner: Callable[[KeyName], str | None],
    settings: Callable[[str], QueueSettings | None],
    depth: Callable[[str], int],
    *,
    bounded: bool = True,
) -> tuple[list[EnqueueResult], list[NewJob]]:
    """The results of an enqueue of these jobs, and the jobs that it would store, given the stored ids, the owners of
    keys, and the settings and depths of queues. `QueueAtCapacity` if a queue has no room, unless bounds are ignored."""
    fresh: dict[str, NewJob] = {}
    keys: dict[KeyName, str] = {}
    added: Counter[str] = Counter()
    answers = []
    for job in jobs:
        name = key_name(job)
        taken_by = None if name is None else keys.get(name) or owner(name)
        if job.id in known or job.id in fresh:
            answers.append(EnqueueResult(job.id))
        elif taken_by is not None:
            answers.append(EnqueueResult(taken_by, duplicate=taken_by != job.id))
        elif bounded and _is_dropped(job, settings(job.queue), lambda queue: depth(queue) + added[queue]):
            answers.append(EnqueueResult(job.id, dropped=True))
        else:
            answers.append(EnqueueResult(job.id))
            fresh[job.id] = job
            added[job.queue] += 1
            if name is not None:
                keys[name] = job.id
    owners = {job.id: placed.id for job, placed in zip(jobs, answers, strict=True) if placed.duplicate}
    return answers, list(redirect_parents(owners, list(fresh.values())))


def redirect_parents(owners: Mapping[str, str], jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The jobs, waiting for the owners of parents that were duplicates."""
    return [_redirect(job, owners) for job in jobs] if owners else jobs


def _redirect(job: NewJob, stands_for: Mapping[str, str]) -> NewJob:
    parents = parents_of(job.after)
    led = list(dict.fromkeys(stands_for.get(parent, parent) for parent in parents))
    if led == parents:
        return job
    return msgspec.structs.replace(job, after=msgspec.json.encode(led).decode(), waits=len(led))


def owners_among(jobs: Sequence[NewJob], placed: Sequence[EnqueueResult]) -> dict[str, str]:
    """The owners of the unique keys of those of these jobs that were duplicates, by job."""
    return {job.id: each.id for job, each in zip(jobs, placed, strict=True) if each.duplicate}


def parents_of(after: str | None) -> list[str]:
    """The ids of the jobs that a job was enqueued to wait for, in their order."""
    return [] if after is None else msgspec.json.decode(after, type=list[str])


def is_gone(record: Record) -> bool:
    """Whether no job can wait for it any more: it was deleted, and had not succeeded."""
    return record.hidden and record.state not in (State.SUCCEEDED, State.SKIPPED)


def refuse_missing_parents(fresh: Sequence[NewJob], known: Container[str]) -> None:
    """`MissingParent`, if one of these would wait for a job that is neither known nor among them."""
    new = {job.id for job in fresh}
    for job in fresh:
        for parent in parents_of(job.after):
            if parent not in new and parent not in known:
                raise MissingParent(job.id, parent)


def explain_missing_parent(orphan: MissingParent, jobs: Sequence[NewJob]) -> PerdureError:
    """Why a job of these has no parent: it is one of them too, and its full queue would drop it, or nobody knows it."""
    if any(job.id == orphan.parent for job in jobs):
        return _parent_is_dropped()
    return UnknownParent(f"{orphan}; nothing was stored")


def refuse_dropped_parents(jobs: Sequence[NewJob], dropped: Container[str]) -> None:
    """QueueFull, if one of these would wait for one that its full queue drops."""
    if any(parent in dropped for job in jobs for parent in parents_of(job.after)):
        raise _parent_is_dropped()


def _parent_is_dropped() -> QueueFull:
    return QueueFull("a queue is full and would drop a job that another of this enqueue waits for; nothing was stored")


def _is_dropped(job: NewJob, settings: QueueSettings | None, depth: Callable[[str], int]) -> bool:
    if settings is None or settings.max_depth is None or depth(job.queue) < settings.max_depth:
        return False
    if settings.drops(job.priority):
        return True
    raise QueueAtCapacity(job.queue, settings.max_depth, waits=settings.on_full != "reject")


def key_name(job: NewJob) -> KeyName | None:
    """The key that a new job asks for."""
    if job.unique_key is None or job.unique_scope is None:
        return None
    return job.unique_scope in ("any", "window"), job.unique_key


def key_ends(job: NewJob, now: int) -> int | None:
    """Until when a key that is kept apart belongs to its job; None: for ever."""
    return now + (job.unique_window or 0) if job.unique_scope == "window" else None


def due_time(job: NewJob, now: int) -> int:
    """When a job that is stored now is to run."""
    return now + job.delay if job.at is None else job.at


def initial_state(job: NewJob, now: int) -> State:
    """The state of a job that is stored now."""
    if job.waits > 0:
        return State.BLOCKED
    return State.SCHEDULED if due_time(job, now) > now else State.READY


def is_parked(state: State, limits: str | None) -> bool:
    """Whether a job in this state waits for room under its limits, outside the lanes."""
    return state is State.READY and limits is not None


def record_of(job: NewJob, now: int, rank: int | None = None) -> Record:
    """The record of a job that is stored now. `rank`: its share of a fair queue."""
    run_at, state = due_time(job, now), initial_state(job, now)
    name = key_name(job)
    return Record(
        id=job.id,
        task=job.task,
        queue=job.queue,
        state=state,
        priority=job.priority,
        rank=run_at if rank is None else rank,
        payload=job.payload,
        version=1,
        attempt=0,
        failures=0,
        losses=0,
        max_attempts=job.max_attempts,
        timeout=job.timeout,
        lease=job.lease,
        backoff=job.backoff,
        retention=job.retention,
        dead_retention=job.dead_retention,
        created_at=now,
        run_at=run_at,
        expires_at=None if job.expires is None else now + job.expires,
        key=job.key,
        tenant=job.tenant,
        routing_key=job.routing_key,
        tags=job.tags,
        meta=job.meta,
        unique_key=job.unique_key,
        unique_scope=job.unique_scope,
        holds_key=name is not None and not name[0],
        chain_id=job.chain_id,
        after=job.after,
        run_when=job.run_when,
        waits=job.waits,
        limits=job.limits,
        parked=is_parked(state, job.limits),
        min_version=job.min_version,
    )


# ---- claim and apply -------------------------------------------------------------------------------
def is_expired(record: Record, now: int) -> bool:
    """Whether it was not started in time."""
    return record.expires_at is not None and record.expires_at <= now and record.started_at is None


def set_state(record: Record, state: State) -> None:
    """The state, and whether the job waits for room under its limits."""
    record.state = state
    record.parked = is_parked(state, record.limits)


def write_claim(record: Record, claim: Claim, now: int) -> None:
    """Let the record run under the claim's stamp."""
    set_state(record, State.RUNNING)
    record.attempt += 1
    record.version += 1
    record.stamp, record.leased_by, record.leased_until = claim.stamp, claim.worker, now + record.lease
    record.started_at = None
    if record.unique_scope == "waiting":
        record.holds_key = False


def is_removable(hidden: bool, finished_at: int | None, now: int) -> bool:
    """Whether an ended job past its retention may be removed. Otherwise it is hidden, for repeated enqueues and reports."""
    return hidden or (finished_at or 0) + HIDDEN_FOR <= now


def write_hidden(record: Record) -> None:
    """Take an ended job out of sight until it may be removed, as one that was deleted."""
    record.version += 1
    record.hidden, record.keep_last = True, None
    record.prune_at = (record.finished_at or 0) + HIDDEN_FOR


def renew_lease(own: int, now: int, lease: int | None) -> tuple[int, int]:
    """The stored lease of a job after a renewal, and until when it is valid. `lease`: what the caller asked for."""
    return (own, now + own) if lease is None else (max(own, lease), now + lease)


class EdgeDecision(StrEnum):
    """What an edge means for its child, given the state of its parent."""

    STAY = "stay"
    LEAD_ON = "lead on"  # another job goes on with the parent's chain
    CLOSE = "close"
    CANCEL = "cancel"


class Parent(Protocol):
    """The fields of a parent that decide about its edges."""

    state: State
    next_id: str | None
    hidden: bool


def decide_edge(parent: Parent | None, run_when: str) -> EdgeDecision:
    """What happens to an edge; `Storage.resolve_edges` explains it."""
    if parent is None:
        return EdgeDecision.CANCEL
    if parent.state not in FINAL:
        return EdgeDecision.STAY
    if parent.next_id is not None:
        return EdgeDecision.LEAD_ON
    if run_when == "finished" or parent.state in (State.SUCCEEDED, State.SKIPPED):
        return EdgeDecision.CLOSE
    return EdgeDecision.CANCEL if parent.state is State.CANCELLED or parent.hidden else EdgeDecision.STAY


def edges_are_lost(waits: int, open_edges: int) -> bool:
    """Whether a blocked job has lost edges, by the number of jobs that it waits for and of its open edges. All of them are
    then made again from `after`, and `resolve_edges` closes those whose parents have ended."""
    return waits != open_edges or open_edges == 0


def write_close(child: Record, now: int) -> None:
    """One of the jobs that a blocked one waits for has let it go. At the last one it is due, unless its time is to come: it
    goes behind jobs that were due before. A share of a fair queue stays."""
    child.waits -= 1
    if child.waits > 0:
        return
    child.version += 1
    if child.run_at > max(now, child.created_at):  # one that was due at once stays so, though the clock went back
        set_state(child, State.SCHEDULED)
        return
    child.rank = now if child.rank == child.run_at else child.rank
    child.run_at = now
    set_state(child, State.READY)


def write_change(record: Record, change: Change, now: int) -> None:
    """Write a change whose guard holds; `Change` says what that means."""
    record.version += 1
    if isinstance(change.guard, HoldGuard) and change.state is not None:
        record.accepted_stamp = change.guard.stamp
    if change.state is None or not change.keeps_hold:
        record.stamp = record.leased_by = record.leased_until = None
    if change.state is None or change.key is KeyMove.FREE:
        record.holds_key = False
    elif change.key is KeyMove.TAKE:
        record.holds_key = record.unique_key is not None
    if change.state is not None:
        _write_values(record, change, change.state, now)


def _write_values(record: Record, change: Change, state: State, now: int) -> None:
    if change.at is not None or change.delay is not None:
        run_at = now + (change.delay or 0) if change.at is None else change.at
        if record.rank == record.run_at:
            record.rank = run_at
        else:  # a share of a fair queue
            record.rank += SHARE if change.pays else 0
        record.run_at = run_at
    if state is State.SCHEDULED and record.run_at <= now:
        state = State.READY
    if state not in FINAL:
        record.finished_at = None
    elif record.state not in FINAL:
        record.finished_at = now
    set_state(record, state)
    record.failures, record.losses, record.suspect = change.failures, change.losses, change.suspect
    record.result, record.reason = change.result, change.reason
    record.errors = record.errors if change.errors is None else change.errors
    record.started_at = record.started_at if change.started_at is None else change.started_at
    record.prune_at = None if change.keep is None else now + change.keep
    record.keep_last, record.hidden = change.keep_last, change.hidden
    record.next_id = record.next_id if change.next_id is None else change.next_id
