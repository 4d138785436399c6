"""What a job is, seen from three sides.

`Job` is what users see: decoded values and datetimes. `Record` is the row as the stores keep it and the worker
passes it on: raw texts, instants in microseconds, nothing decoded that nobody asked for. `NewJob` is a record
that is not stored yet; its times are durations, because the store's clock decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Final, Generic, Literal, TypeVar, overload
from uuid import UUID

import msgspec

from .clock import SECOND, datetime_of, optional_datetime, seconds_of

JobId = UUID
T = TypeVar("T")

ROW_VERSION = 1  # the oldest version of Perdure's rules that may claim a row written by this one


class _Any(Enum):
    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any.ANY
Routing = str | None | Literal[_Any.ANY]


class State(StrEnum):
    """The eight states of a job. The last four are final."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    DEAD = "dead"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__  # that of its text, and not a call of Python code per look-up

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL: Final = frozenset({State.SUCCEEDED, State.SKIPPED, State.DEAD, State.CANCELLED})
WAITING: Final = frozenset({State.BLOCKED, State.SCHEDULED, State.READY})


class Loss(StrEnum):
    """Why a handler was told to stop."""

    TAKEN_BY_ANOTHER_WORKER = "taken_by_another_worker"
    ALREADY_COMPLETED = "already_completed"
    NOT_FOUND = "not_found"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class AttemptError:
    """How one attempt went wrong."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime
    kind: str
    message: str
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as users see it: a picture of one moment."""

    id: JobId
    task: str
    queue: str
    state: State
    priority: int
    attempt: int
    failures: int
    losses: int
    max_attempts: int | None
    payload: str
    result: Any
    progress: Any
    errors: tuple[AttemptError, ...]
    reason: str | None
    key: str | None
    tenant: str | None
    routing_key: str | None
    tags: tuple[str, ...]
    meta: Mapping[str, str]
    chain_id: JobId
    after: tuple[JobId, ...]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    leased_by: str | None
    leased_until: datetime | None
    timeout: float | None
    next_id: JobId | None = None  # the job that goes on with its chain

    def __hash__(self) -> int:  # not of the whole: meta and results may have no hash
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a listing; `cursor` is None on the last page."""

    items: tuple[T, ...]
    cursor: str | None


class Fault(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """An `AttemptError` as it is stored: a short JSON array."""

    attempt: int
    worker: str
    started_at: int
    ended_at: int
    kind: str
    message: str
    traceback: str | None = None


class Hold(msgspec.Struct, gc=False, frozen=True):
    """What a claimer may speak for: this attempt of this job, marked by the claim's random stamp."""

    id: str
    attempt: int
    stamp: int


class NewJob(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A job that is to be put on record. Durations are microseconds from the moment it is stored."""

    id: str
    task: str
    payload: str
    queue: str = "default"
    priority: int = 0
    delay: int = 0
    at: int | None = None  # an instant, instead of the delay
    expires: int | None = None  # cancelled when not started within this time
    max_attempts: int | None = 3
    timeout: int | None = 300 * SECOND
    lease: int = 60 * SECOND
    backoff: str
    retention: str
    dead_retention: str
    key: str | None = None
    tenant: str | None = None
    routing_key: str | None = None
    tags: str | None = None  # JSON array
    meta: str | None = None  # JSON object
    unique_key: str | None = None  # task, tenant and key in one text
    unique_scope: str | None = None  # waiting, active, any, window
    unique_window: int | None = None
    chain_id: str | None = None  # None: it begins a chain of its own
    after: str | None = None  # JSON array of parents' ids
    run_when: str = "succeeded"
    waits: int = 0  # parents not yet ended
    limits: str | None = None  # what it runs under: see `storage.limiting`
    min_version: int = ROW_VERSION


class Alike(Sequence[NewJob]):
    """New jobs that differ in nothing but their ids and payloads, as those of a long list mostly do. A store that can
    write them by kind needs no more than what stands here; for others the jobs are made when they are asked for."""

    __slots__ = ("_made", "ids", "payloads", "template")

    def __init__(self, template: NewJob, ids: Sequence[str], payloads: Sequence[str]) -> None:
        self.template = template
        self.ids = ids
        self.payloads = payloads
        self._made: list[NewJob] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[NewJob]:
        return iter(self._jobs())

    @overload
    def __getitem__(self, place: int) -> NewJob: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[NewJob]: ...
    def __getitem__(self, place: int | slice) -> NewJob | Sequence[NewJob]:
        if isinstance(place, slice):
            return Alike(self.template, self.ids[place], self.payloads[place])
        return self._jobs()[place]

    def _jobs(self) -> list[NewJob]:
        if self._made is None:
            given = zip(self.ids, self.payloads, strict=True)
            self._made = [msgspec.structs.replace(self.template, id=id, payload=payload) for id, payload in given]
        return self._made


class Record(msgspec.Struct, gc=False, kw_only=True):
    """A job as it stands in a store. Nobody but the memory store changes one in place."""

    id: str
    task: str
    queue: str
    state: State
    priority: int
    rank: int
    payload: str
    version: int
    attempt: int
    failures: int
    losses: int
    max_attempts: int | None
    timeout: int | None
    lease: int
    backoff: str
    retention: str
    dead_retention: str
    created_at: int
    run_at: int
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    prune_at: int | None = None
    keep_last: int | None = None
    stamp: int | None = None  # of the claim that holds it
    settled: int | None = None  # stamp of the last hold whose word was accepted
    leased_by: str | None = None
    leased_until: int | None = None
    suspect: bool = False
    parked: bool = False
    hidden: bool = False
    result: str | None = None
    progress: str | None = None
    errors: str | None = None
    reason: str | None = None
    key: str | None = None
    tenant: str | None = None
    routing_key: str | None = None
    tags: str | None = None
    meta: str | None = None
    unique_key: str | None = None
    unique_scope: str | None = None
    holds_key: bool = False  # it occupies unique_key now (scopes waiting and active)
    chain_id: str | None = None
    after: str | None = None
    run_when: str = "succeeded"
    waits: int = 0
    followed: bool = False  # a job waits, or has waited, for this one
    next_id: str | None = None  # the job that goes on with its chain
    limits: str | None = None
    min_version: int = ROW_VERSION

    @property
    def hold(self) -> Hold:
        return Hold(self.id, self.attempt, self.stamp or 0)


def job_of(record: Record) -> Job:
    """The picture for users of a stored job."""
    return Job(
        id=UUID(record.id),
        task=record.task,
        queue=record.queue,
        state=State(record.state),
        priority=record.priority,
        attempt=record.attempt,
        failures=record.failures,
        losses=record.losses,
        max_attempts=record.max_attempts,
        payload=record.payload,
        result=_decoded(record.result),
        progress=_decoded(record.progress),
        errors=tuple(_error_of(fault) for fault in faults_of(record.errors)),
        reason=record.reason,
        key=record.key,
        tenant=record.tenant,
        routing_key=record.routing_key,
        tags=tuple(_decoded(record.tags) or ()),
        meta=_decoded(record.meta) or {},
        chain_id=UUID(record.chain_id or record.id),
        after=tuple(UUID(parent) for parent in _decoded(record.after) or ()),
        created_at=datetime_of(record.created_at),
        run_at=datetime_of(record.run_at),
        started_at=optional_datetime(record.started_at),
        finished_at=optional_datetime(record.finished_at),
        expires_at=optional_datetime(record.expires_at),
        leased_by=record.leased_by,
        leased_until=optional_datetime(record.leased_until),
        timeout=seconds_of(record.timeout),
        next_id=None if record.next_id is None else UUID(record.next_id),
    )


_faults = msgspec.json.Decoder(list[Fault])
_anything = msgspec.json.Decoder()


def faults_of(errors: str | None) -> list[Fault]:
    return [] if errors is None else _faults.decode(errors)


def faults_text(faults: list[Fault]) -> str:
    return msgspec.json.encode(faults).decode()


def _decoded(text: str | None) -> Any:
    return None if text is None else _anything.decode(text)


def _error_of(fault: Fault) -> AttemptError:
    return AttemptError(
        attempt=fault.attempt,
        worker=fault.worker,
        started_at=datetime_of(fault.started_at),
        ended_at=datetime_of(fault.ended_at),
        kind=fault.kind,
        message=fault.message,
        traceback=fault.traceback,
    )
