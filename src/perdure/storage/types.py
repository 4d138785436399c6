"""The arguments and results of the verbs of `contract`, which exports them all and says what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from ..core.job import ANY, Loss, Routing, State
from ..core.record import Hold, NewJob, Record
from ..errors import UnknownParent


# ---- enqueue ---------------------------------------------------------------------------------------
class EnqueueResult(msgspec.Struct, frozen=True, gc=False):
    """The result of an enqueue. `id`: the job itself, or the job that has its unique key already (`duplicate`)."""

    id: str
    duplicate: bool = False
    dropped: bool = False


class QueueAtCapacity(Exception):
    """A bounded queue has no room; nothing of the call was stored. `waits`: its policy is to wait."""

    def __init__(self, queue: str, max_depth: int, *, waits: bool) -> None:
        super().__init__(f"queue {queue!r} holds its {max_depth} jobs")
        self.queue = queue
        self.max_depth = max_depth
        self.waits = waits


class MissingParent(UnknownParent):
    """A job would wait for a job that is not stored; nothing of the call was stored."""

    def __init__(self, job: str, parent: str) -> None:
        super().__init__(f"job {job} would wait for job {parent}, which is not on record")
        self.job = job
        self.parent = parent


class CallerStatements(msgspec.Struct, frozen=True, gc=False):
    """An enqueue as data, for a connection that the caller owns: only INSERT and plain SELECT.

    Run `inserts` in order, then `readback`, whose rows are (position in the list, id of the job or of its duplicate).
    `owners` returns such rows before the inserts: the id of a job that has the key already, or NULL. Each statement has
    exactly one parameter, a JSON text, written as `?`; it contains no other question mark or percent sign.
    """

    inserts: tuple[tuple[str, str], ...]
    readback: tuple[str, str]
    owners: tuple[str, str]


class CallerSession(Protocol):
    """An enqueue for a session of the store's own driver, which the caller owns and commits."""

    def enqueue_blocking(self, session: Any) -> list[EnqueueResult]:
        """Store the jobs inside the session's transaction, in the thread that owns it."""

    async def enqueue_async(self, session: Any) -> list[EnqueueResult]:
        """The same for a session of the driver's asynchronous form."""

    def durable(self, session: Any) -> bool:
        """Whether the caller's commit will be as durable as ours."""


# ---- claim and apply -------------------------------------------------------------------------------
class Want(msgspec.Struct, frozen=True, gc=False):
    """One line of a claim: up to `limit` jobs of these queues and tasks (None: all) and this routing key.

    `alone` asks for suspects, which run with nothing beside them; otherwise suspects are left out. `limited` asks for jobs
    under limits, which are parked while they are ready, and for no others; otherwise they are left out.
    """

    limit: int
    queues: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    routing: Routing = ANY
    alone: bool = False
    limited: bool = False


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Who claims, under which fresh stamp, and what it wants, in order of preference."""

    worker: str
    stamp: int
    wants: tuple[Want, ...]


class Started(msgspec.Struct, frozen=True, gc=False):
    """A handler began. The next exchange stores it, so that a reaper knows which jobs ran when a worker died."""

    hold: Hold
    at: int


class Refusal(StrEnum):
    """Why a change or a renewal was refused."""

    TAKEN = "taken"  # claimed by another worker, or brought back by a reaper
    COMPLETED = "completed"  # ended from outside
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"  # deleted, or never there
    STALE = "stale"  # the row has moved since it was read: read, decide, apply again
    KEY_TAKEN = "key_taken"  # its unique key belongs to another job now


LOSS_OF = {
    Refusal.TAKEN: Loss.TAKEN_BY_ANOTHER_WORKER,
    Refusal.COMPLETED: Loss.ALREADY_COMPLETED,
    Refusal.CANCELLED: Loss.CANCELLED,
    Refusal.NOT_FOUND: Loss.NOT_FOUND,
}


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Accepted, accepted before (a repeated report), or refused."""

    refusal: Refusal | None = None
    repeated: bool = False

    @property
    def accepted(self) -> bool:
        return self.refusal is None


ACCEPTED = Verdict()
REPEATED = Verdict(repeated=True)
REFUSED = {refusal: Verdict(refusal) for refusal in Refusal}


class ExchangeResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to an exchange. `next_due`: microseconds until the next scheduled job is due (0 if it is) or, with a
    want for limited jobs, until a rate lets one of them start; None if there is none. `suspects`: there are still
    suspects that one of the wants would get with `alone`. Both are set only with a claim. `unresolved`: `resolve_edges` has
    more to do."""

    verdicts: Sequence[Verdict] = ()
    claimed: Sequence[Record] = ()
    next_due: int | None = None
    suspects: bool = False
    unresolved: bool = False


class Note(msgspec.Struct, frozen=True, gc=False):
    """Progress (JSON text) and log lines of a handler that runs. Fenced by the hold."""

    hold: Hold
    progress: str | None = None
    lines: tuple[str, ...] = ()


# ---- kv entries ------------------------------------------------------------------------------------
class KvEntry(msgspec.Struct, frozen=True, gc=False):
    """A named text that the store keeps: a schedule, a subscription, the result of a step … `version` rises with every
    write, from 1. One that belongs to a job is removed with it."""

    kind: str
    name: str
    text: str
    version: int = 1
    due_at: int | None = None
    job: str | None = None


class KvWrite(msgspec.Struct, frozen=True, gc=False):
    """Writes an entry, or removes it (text None), if its guards hold: `version` is the stored version (0: there is no entry;
    None: any), and `hold` is still valid. `jobs` are enqueued in the same transaction."""

    kind: str
    name: str
    text: str | None
    version: int | None = None
    due_at: int | None = None
    job: str | None = None
    hold: Hold | None = None
    jobs: tuple[NewJob, ...] = ()


# ---- reading ---------------------------------------------------------------------------------------
class Filter(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Selects jobs that fit all given fields. `tenant` fits exactly or up to "/". `text` is found, ignoring ASCII
    case, in the payload, key, reason or errors, as it is or as JSON writes it. since ≤ created_at < before. A job
    without chain_id has its own id's."""

    states: tuple[State, ...] | None = None
    task: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    tag: str | None = None
    routing: Routing = ANY
    chain_id: str | None = None
    text: str | None = None
    since: int | None = None
    before: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, gc=False):
    """The durable settings of a queue."""

    name: str
    paused: bool = False
    max_depth: int | None = None
    on_full: Literal["reject", "drop", "wait"] = "reject"
    drop_below: int | None = None  # None: with "drop", every job is dropped
    fair: bool = False
    weights: str | None = None  # JSON object

    def drops(self, priority: int) -> bool:
        """Whether a job of this priority is dropped when there is no room."""
        return self.on_full == "drop" and (self.drop_below is None or priority < self.drop_below)


class QueueCapacity(msgspec.Struct, frozen=True, gc=False):
    """How many more jobs a bounded queue takes. Of its settings, only those of the bound are set."""

    settings: QueueSettings
    left: int


def bound_of(settings: QueueSettings) -> QueueSettings:
    """The settings of the bound alone."""
    return QueueSettings(
        settings.name, max_depth=settings.max_depth, on_full=settings.on_full, drop_below=settings.drop_below
    )


class QueueRow(msgspec.Struct, frozen=True, gc=False):
    """A queue now. `depth`: jobs ready (parked ones too), scheduled and blocked. `oldest`: microseconds that the
    oldest ready job has been due."""

    settings: QueueSettings
    depth: int
    oldest: int | None


class JobDump(msgspec.Struct, frozen=True):
    """A whole job for a transfer to another store: the record, its log, oldest line first, the jobs that it still waits
    for, and those that waited for it and have not ended, so that it is kept for them; both by id."""

    record: Record
    lines: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    kept_for: tuple[str, ...] = ()


class KeptKey(msgspec.Struct, frozen=True, gc=False):
    """A unique key of scope any (`ends` is None) or window, and the job that took it."""

    key: str
    job: str
    ends: int | None = None


class WorkerRow(msgspec.Struct, frozen=True, gc=False):
    """A worker's heartbeat. `about` is JSON: host, pid, queues, tasks, version."""

    id: str
    started_at: int
    seen_at: int
    running: int
    about: str

    def read_about(self) -> dict[str, Any] | None:
        """Its `about`, decoded; None if it cannot be read."""
        try:
            return msgspec.json.decode(self.about, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def read_tasks(self, *names: str) -> frozenset[str] | None:
        """The tasks that it lists under the first of these names that has any; None: it lists none, so it takes every task.
        A worker whose `about` cannot be read knows no task."""
        about = self.read_about()
        if about is None:
            return frozenset()
        listed = next((found for name in names if (found := about.get(name))), None)
        if listed is None:
            return None
        return frozenset(task for task in listed if isinstance(task, str)) if isinstance(listed, list) else frozenset()


class Durability(msgspec.Struct, frozen=True, gc=False):
    """How safe an acknowledged job is: A survives power loss and failover, B power loss, C may lose up to two
    seconds, D keeps nothing on disk. `remedy` says how to improve it."""

    grade: Literal["A", "B", "C", "D"]
    detail: str
    remedy: str | None = None


class Finding(msgspec.Struct, frozen=True, gc=False):
    """A line of `perdure doctor` about the store's server: version, memory, latency …"""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str | None = None


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """A row that could not be read, as it was found. `id`: of its job, or another name of the row where it has no job.
    `where`: "jobs", or another table or kind of key. `fields`: what could not be read. `raw`: the row, a JSON object."""

    id: str
    at: int
    where: str
    fields: tuple[str, ...]
    raw: str


Topic = Literal["ready", "changed"]
