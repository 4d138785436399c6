"""A job as users see it: decoded values and datetimes.

`record.Record` is the row as stores keep it and workers pass it on: raw texts, instants in microseconds, nothing decoded
that nobody asked for. `record.NewJob` is a job that is not stored yet; its times are durations, because the store's clock
decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID

JobId = UUID
T = TypeVar("T")


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

    __hash__ = str.__hash__  # the one of Enum is a call of Python code per look-up

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL: Final = frozenset({State.SUCCEEDED, State.SKIPPED, State.DEAD, State.CANCELLED})
WAITING: Final = frozenset({State.BLOCKED, State.SCHEDULED, State.READY})


def tenant_root(tenant: str | None) -> str:
    """The tenant that limits and shares count: the part before "/", "" for a job without tenant."""
    return (tenant or "").partition("/")[0]


class Loss(StrEnum):
    """Why a handler should stop."""

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
    """A job as users see it, at one moment."""

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
