# The public API of Perdure. It is fixed: test_public_api.py compares it with the code, name by name. A name that is not built
# yet stands in that test's list. Change this file only with a decision about the API itself.
#
# The types of the public API, beside API.md (which gives the meanings). The sync twins are generated from it (Sync<Name>:
# the same verbs without async), so they are not listed here. Checked with mypy --strict and basedpyright.
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from pathlib import Path
from types import TracebackType
from typing import (Any, ClassVar, Concatenate, Final, Generic, Literal, Never, ParamSpec, Protocol, Self, TypedDict,
                    TypeVar, TypeVarTuple, Unpack, final, overload)
from uuid import UUID
from ._sync import (SyncContext, SyncDead, SyncPerdure, SyncItem, SyncJobHandle, SyncJobs, SyncQueues, SyncSchedules,
                    SyncTask, SyncTransaction, SyncWorkers)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E", bound=Event)
R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

Duration = float | timedelta
JobId = UUID
JobRef = UUID | str | JobHandle[Any] | Job
class _Any(Enum):
    ANY = "any"
ANY: Final = _Any.ANY
Routing = str | None | Literal[_Any.ANY]

class State(StrEnum):
    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    DEAD = "dead"
    CANCELLED = "cancelled"
    @property
    def final(self) -> bool: ...

class Loss(StrEnum):
    TAKEN_BY_ANOTHER_WORKER = "taken_by_another_worker"
    ALREADY_COMPLETED = "already_completed"
    NOT_FOUND = "not_found"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"

@final
class Backoff:
    @classmethod
    def exponential(cls, initial: Duration, *, multiplier: float = 2.0, maximum: Duration = 3600.0, jitter: Duration = 0.0) -> Backoff: ...
    @classmethod
    def fixed(cls, delay: Duration, *, jitter: Duration = 0.0) -> Backoff: ...

@final
class Retention:
    @classmethod
    def delete(cls) -> Retention: ...
    @classmethod
    def keep(cls, *, last: int | None = None, age: Duration | None = None) -> Retention: ...

@dataclass(frozen=True)
class Unique:
    key: str | None = None
    scope: Literal["waiting", "active", "any", "window"] = "active"
    window: Duration | None = None
    replace: Sequence[Literal["payload", "run_at", "priority", "tags", "meta"]] = ()

@dataclass(frozen=True)
class Debounce:
    delay: Duration
    max_wait: Duration | None = None

@dataclass(frozen=True)
class Breaker:
    failures: int = 5
    cool_down: Duration = 30.0
    per: Literal["tenant", "key", "routing_key"] | None = None

@dataclass(frozen=True)
class Limit:
    max_running: int | None = None
    rate: str | tuple[int, Duration] | None = None
    per: Literal["tenant", "key", "routing_key"] | None = None
    name: str | None = None

class TaskDefaults(TypedDict, total=False):
    queue: str
    priority: int
    max_attempts: int | None
    timeout: Duration | None
    lease: Duration
    backoff: Backoff
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None
    dont_retry_on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None
    run_in: Literal["auto", "loop", "thread", "process"]
    concurrency: int | None
    limit: Limit | Sequence[Limit] | None
    unique: Unique | None
    expires: Duration | None
    retention: Retention
    dead_retention: Retention
    critical: bool
    tags: Sequence[str]
    version: int
    ordered: Literal["halt", "continue"] | None
    breaker: Breaker | None

class TaskOptions(TaskDefaults, total=False):
    name: str
    aliases: Sequence[str]

class CallOptions(TypedDict, total=False):
    delay: Duration | None
    at: datetime | None
    queue: str
    priority: int
    key: str | None
    unique: Unique | None
    debounce: Debounce | None
    tenant: str | None
    routing_key: str | None
    after: Sequence[JobHandle[Any] | JobId | str]
    run_when: Literal["succeeded", "finished"]
    tags: Sequence[str]
    meta: Mapping[str, str]
    max_attempts: int | None
    timeout: Duration | None
    expires: Duration | None
    backoff: Backoff
    retention: Retention
    dead_retention: Retention
    connection: object

# ---- jobs -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AttemptError:
    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime
    kind: str
    message: str
    traceback: str | None

@dataclass(frozen=True)
class Job:
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

class JobHandle(Generic[R_co]):
    id: JobId
    duplicate: bool
    dropped: bool
    @property
    def sync(self) -> SyncJobHandle[R_co]: ...
    async def result(self, *, timeout: Duration | None = None) -> R_co: ...
    async def refresh(self) -> Job: ...
    async def cancel(self) -> bool: ...
    def watch(self, *, timeout: Duration | None = None) -> AsyncIterator[Job]: ...

@dataclass(frozen=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    cursor: str | None
    whole: bool = True

# ---- calls and flows ------------------------------------------------------------------------------
class _Takes(Protocol[A_contra, R_co]):
    def call(self, value: A_contra, /) -> Call[R_co]: ...
class _TakesOne(Protocol):
    def call(self, event: Any, /) -> Call[Any]: ...
class _TakesNothing(Protocol):
    def call(self) -> Call[Any]: ...

class Call(Generic[R_co]):
    def then(self, task: _Takes[R_co, S], /) -> Flow[S]: ...
class Flow(Generic[R_co]):
    def then(self, task: _Takes[R_co, S], /) -> Flow[S]: ...
class Graph:
    def add(self, call: Call[R], /, *, after: Sequence[Node[Any]] = ()) -> Node[R]: ...
class Node(Generic[R_co]): ...

def chain(*calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Flow[R]: ...
def group(*calls: Call[R]) -> Flow[list[R]]: ...
def graph() -> Graph: ...
def Continue(call: Call[R] | Flow[R], /) -> R: ...

# ---- tasks ----------------------------------------------------------------------------------------
class Task(Generic[P, R]):
    name: str
    @property
    def sync(self) -> SyncTask[P, R]: ...
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]: ...
    def handle(self, id: JobId | str, /) -> JobHandle[R]: ...
    def upcast(self, version: int, /) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Callable[[dict[str, Any]], dict[str, Any]]]: ...

class _Nobody: ...
class TaskMaker:
    @overload
    def __call__(self, handler: Callable[Concatenate[_Nobody, P], Coroutine[Any, Any, R]], /) -> Task[Concatenate[Any, P], R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[_Nobody, P], R], /) -> Task[Concatenate[Any, P], R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[TaskOptions]) -> TaskMaker: ...

class BatchMaker:
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], Coroutine[Any, Any, None]], /) -> Task[[A], None]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], Coroutine[Any, Any, list[R]]], /) -> Task[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], None], /) -> Task[[A], None]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], list[R]], /) -> Task[[A], R]: ...

TK = TypeVar("TK", bound=_TakesNothing)
TK1 = TypeVar("TK1", bound=_TakesOne)
class Registry:
    def __init__(self, *, prefix: str = "", **defaults: Unpack[TaskDefaults]) -> None: ...
    @property
    def task(self) -> TaskMaker: ...
    def batch_task(self, *, size: int, wait: Duration = 0.05, weigh: Callable[[Any], float] | None = None, max_weight: float | None = None, **options: Unpack[TaskOptions]) -> BatchMaker: ...
    def subscribe(self, topic: str, /, *, routing_key: Routing = ...) -> Callable[[TK1], TK1]: ...
    @overload
    def schedule(self, cron: str | None = None, /, *, every: Duration | None = None, name: str | None = None, timezone: str = "UTC", start: datetime | None = None, end: datetime | None = None,
                 max_runs: int | None = None, missed: Literal["skip", "once", "all"] = "skip", overlap: Literal["allow", "skip"] = "allow") -> Callable[[TK], TK]: ...
    @overload
    def schedule(self, cron: str | None, call: Call[Any], /, *, every: Duration | None = None, name: str, timezone: str = "UTC", start: datetime | None = None, end: datetime | None = None,
                 max_runs: int | None = None, missed: Literal["skip", "once", "all"] = "skip", overlap: Literal["allow", "skip"] = "allow") -> None: ...
    def middleware(self, middleware: Middleware, /) -> Middleware: ...
    def observe(self, kind: type[E], /) -> Callable[[Observer[E]], Observer[E]]: ...
    def provide(self, kind: type[T], make: Callable[[], T | Awaitable[T] | AbstractAsyncContextManager[T]], /, *, scope: Literal["worker", "job"] = "worker") -> None: ...
    def include(self, other: Registry, /, *, prefix: str = "") -> None: ...

Observer = Callable[[E], Awaitable[None] | None]
Middleware = Callable[[Context, Callable[[], Awaitable[object]]], Awaitable[object]]

# ---- inside a handler -----------------------------------------------------------------------------
class Outcome(BaseException): ...
class Retry(Outcome):
    @overload
    def __init__(self, delay: Duration | None = None, *, reason: str = "") -> None: ...
    @overload
    def __init__(self, *, at: datetime, reason: str = "") -> None: ...
class Snooze(Outcome):
    @overload
    def __init__(self, delay: Duration, *, reason: str = "") -> None: ...
    @overload
    def __init__(self, *, at: datetime, reason: str = "") -> None: ...
class Skip(Outcome):
    def __init__(self, reason: str = "", /, *, result: object = None) -> None: ...
class Dead(Outcome):
    def __init__(self, reason: str, /) -> None: ...

class Lost:
    reason: Loss | None
    def is_set(self) -> bool: ...
    def check(self) -> None: ...
    async def wait(self) -> Loss: ...

class Transaction:
    connection: Any
    @property
    def sync(self) -> SyncTransaction: ...
    async def execute(self, statement: str, parameters: Sequence[object] | Mapping[str, object] = (), /) -> list[tuple[Any, ...]]: ...

class Context:
    job: Job
    jobs: tuple[Job, ...]
    worker: str
    tenant: str | None
    fence: str
    lost: Lost
    parents: tuple[Any, ...]
    app: Perdure
    @property
    def sync(self) -> SyncContext: ...
    @staticmethod
    def current() -> Context: ...
    def get(self, kind: type[T], /) -> T: ...
    async def progress(self, value: object, /) -> None: ...
    async def log(self, line: str, /) -> None: ...
    async def transaction(self) -> Transaction: ...
    async def step(self, name: str, fn: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def sleep(self, duration: Duration, /) -> None: ...
    async def wait_for(self, name: str, /, *, timeout: Duration | None = None) -> Any: ...
    def on_dead(self, call: Call[Any], /) -> None: ...

class Item(Context, Generic[A]):
    args: A
    @property
    def sync(self) -> SyncItem[A]: ...
    async def succeed(self, result: object = None, /) -> None: ...
    async def retry(self, delay: Duration | None = None, *, at: datetime | None = None, reason: str = "") -> None: ...
    async def snooze(self, delay: Duration, /) -> None: ...
    async def skip(self, reason: str = "", /) -> None: ...
    async def dead(self, reason: str, /) -> None: ...

# ---- the door -------------------------------------------------------------------------------------
class JobFilter(TypedDict, total=False):
    state: State | Sequence[State]
    task: str
    queue: str
    tenant: str
    key: str
    tag: str
    routing_key: Routing
    chain_id: JobId | str
    text: str
    before: datetime
    since: datetime

@dataclass(frozen=True)
class Explanation:
    job: Job
    cause: str
    summary: str
    reasons: tuple[str, ...]
    evidence: Mapping[str, Any]
    remedy: str | None
    command: str | None
    starts_in: float | None
@dataclass(frozen=True)
class TaskInfo:
    name: str
    versions: tuple[int, ...]
    workers: int
    depth: int
    paused: bool
    overrides: Mapping[str, Any]
    breakers: Mapping[str, datetime]
@dataclass(frozen=True)
class ErrorGroup:
    id: str
    kind: str
    message: str
    count: int
    first_seen: datetime
    last_seen: datetime
    tasks: tuple[str, ...]
    tenants: tuple[str, ...]
    versions: tuple[str, ...]
    sample: tuple[JobId, ...]
    muted: bool
@dataclass(frozen=True)
class Operation:
    id: str
    action: Literal["retry", "cancel", "delete", "run_now", "move", "reprioritise"]
    where: str
    actor: str
    state: Literal["running", "paused", "finished", "cancelled", "undone", "failed"]
    matched: int
    done: int
    refused: int
    created_at: datetime
    finished_at: datetime | None
@dataclass(frozen=True)
class Access:
    role: Role
    tenant: str | None = None
@dataclass(frozen=True)
class QueueInfo:
    name: str
    paused: bool
    depth: int
    oldest: float | None
@dataclass(frozen=True)
class ScheduleInfo:
    name: str
    cron: str
    task: str
    next_at: datetime | None
@dataclass(frozen=True)
class WorkerInfo:
    id: str
    seen_at: datetime
    running: int
@dataclass(frozen=True)
class Health:
    status: Literal["healthy", "degraded", "unhealthy"]
    checks: Mapping[str, Check]
    details: Mapping[str, Any]
@dataclass(frozen=True)
class Check:
    status: Literal["healthy", "degraded", "unhealthy"]
    message: str
    details: Mapping[str, Any]
@dataclass(frozen=True)
class Stats:
    depth: int
    age: float
    running: int
    p50: float
    p95: float
    p99: float
    wait_p95: float
    throughput: float
    success_rate: float
    retried: int
    dead: int
    average: float
    maximum: float
    series: tuple[Mapping[str, Any], ...]

class Jobs:
    @property
    def sync(self) -> SyncJobs: ...
    async def get(self, id: JobId | str, /) -> Job | None: ...
    async def find(self, *, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]) -> Page[Job]: ...
    async def count(self, **filter: Unpack[JobFilter]) -> int: ...
    async def cancel(self, *ids: JobRef) -> int: ...
    async def run_now(self, *ids: JobRef) -> int: ...
    async def complete(self, id: JobRef, result: object = None, /) -> None: ...
    async def delete(self, *ids: JobRef, cascade: bool = False) -> int: ...
    async def explain(self, id: JobRef, /) -> Explanation: ...
    async def where(self, query: str, /, *, limit: int = 50, cursor: str | None = None) -> Page[Job]: ...
    async def log(self, id: JobRef, /) -> tuple[str, ...]: ...
    async def answer(self, id: JobRef, name: str, value: object = None, /) -> None: ...
class DeadLetters:
    @property
    def sync(self) -> SyncDead: ...
    async def find(self, *, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]) -> Page[Job]: ...
    async def retry(self, *ids: JobRef) -> int: ...
    async def retry_all(self, **filter: Unpack[JobFilter]) -> int: ...
    async def purge(self, *, cascade: bool = False, **filter: Unpack[JobFilter]) -> int: ...
    async def export(self, path: str | Path, /, **filter: Unpack[JobFilter]) -> int: ...
class Tasks:
    async def list(self) -> tuple[TaskInfo, ...]: ...
    async def pause(self, name: str, /) -> None: ...
    async def resume(self, name: str, /) -> None: ...
    async def override(self, name: str, /, *, timeout: Duration | None = ..., max_attempts: int | None = ..., backoff: Backoff = ..., priority: int = ...,
                       concurrency: int | None = ..., limit: Limit | Sequence[Limit] | None = ...) -> None: ...
    async def reset(self, name: str, /) -> None: ...
    async def close_breaker(self, name: str, /, key: str | None = None) -> int: ...
class Errors:
    async def list(self, *, task: str | None = None, since: datetime | None = None, limit: int = 50) -> tuple[ErrorGroup, ...]: ...
    async def get(self, id: str, /) -> ErrorGroup: ...
    async def retry(self, id: str, /) -> int: ...
    async def purge(self, id: str, /) -> int: ...
    async def mute(self, id: str, /) -> None: ...
    async def unmute(self, id: str, /) -> None: ...
class Alerts:
    async def rule(self, name: str, /, *, metric: str, above: float | None = None, below: float | None = None, lasting: Duration = 0, queue: str | None = None,
                   task: str | None = None, severity: Literal["warning", "high", "error"] = "warning") -> None: ...
    async def rules(self) -> tuple[Any, ...]: ...
    async def remove(self, name: str, /) -> None: ...
    async def list(self) -> tuple[Any, ...]: ...
    async def silence(self, name: str, duration: Duration, /) -> None: ...
class Operations:
    async def preview(self, action: str, /, *, where: str) -> Any: ...
    async def start(self, action: str, /, *, where: str, pace: int = 1000, actor: str | None = None, queue: str | None = None, priority: int | None = None) -> Operation: ...
    async def list(self) -> tuple[Operation, ...]: ...
    async def get(self, id: str, /) -> Operation: ...
    async def pause(self, id: str, /) -> None: ...
    async def resume(self, id: str, /) -> None: ...
    async def cancel(self, id: str, /) -> None: ...
    async def undo(self, id: str, /) -> Operation: ...
class Queues:
    @property
    def sync(self) -> SyncQueues: ...
    async def pending(self, name: str, /) -> Mapping[str, int]: ...
    async def list(self) -> tuple[QueueInfo, ...]: ...
    async def pause(self, name: str, /) -> None: ...
    async def resume(self, name: str, /) -> None: ...
    async def configure(self, name: str, /, *, max_depth: int | None = None, on_full: Literal["reject", "drop", "wait"] = "reject",
                        drop_below: int | None = None, fair: bool = False, weights: Mapping[str, float] | None = None) -> None: ...
class Schedules:
    @property
    def sync(self) -> SyncSchedules: ...
    async def put(self, name: str, cron: str | None, call: Call[Any], /, *, every: Duration | None = None, timezone: str = "UTC", start: datetime | None = None, end: datetime | None = None,
                  max_runs: int | None = None, missed: Literal["skip", "once", "all"] = "skip", overlap: Literal["allow", "skip"] = "allow") -> None: ...
    async def reschedule(self, name: str, cron: str, /) -> None: ...
    async def remove(self, name: str, /) -> None: ...
    async def pause(self, name: str, /) -> None: ...
    async def resume(self, name: str, /) -> None: ...
    async def run_now(self, name: str, /) -> JobHandle[Any]: ...
    async def list(self) -> tuple[ScheduleInfo, ...]: ...
    async def preview(self, name: str, n: int = 5, /) -> tuple[datetime, ...]: ...
class Workers:
    @property
    def sync(self) -> SyncWorkers: ...
    async def list(self) -> tuple[WorkerInfo, ...]: ...

class WorkerSpec(TypedDict, total=False):
    queues: Sequence[str] | None
    tasks: Sequence[str | Task[..., Any]] | None
    routing_key: Routing
    concurrency: int
    batch_size: Mapping[str, int]
    name: str
    poll: Duration | None
    grace: Duration
    unknown: Literal["leave", "fail"]
@dataclass(frozen=True)
class Thresholds:
    depth: int = 100
    age: Duration = 3600
    dead: int = 100
    workers: int = 1
Role = Literal["viewer", "operator", "admin"]
class Worker:
    id: str
    async def start(self) -> None: ...
    async def run(self) -> None: ...
    async def stop(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...
class WorkerPool:
    def __init__(self, app: Perdure, specs: Sequence[WorkerSpec], /) -> None: ...
    async def run(self) -> None: ...
    async def stop(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...
class Clock(Protocol):
    def now(self) -> datetime: ...

class Perdure(Registry):
    jobs: Jobs
    dead: DeadLetters
    queues: Queues
    schedules: Schedules
    workers: Workers
    tasks: Tasks
    errors: Errors
    alerts: Alerts
    operations: Operations
    def __init__(self, url: str | None = None, /, *, imports: Sequence[str] = (), durability: Literal["full", "normal", "relaxed"] = "normal", outbox: str | None = None,
                 migrate: bool = True, clock: Clock | None = None, thresholds: Thresholds = ..., keys: str | None = None, alerts: Sequence[Any] = (), **defaults: Unpack[TaskDefaults]) -> None: ...
    @property
    def sync(self) -> SyncPerdure: ...
    @overload
    async def enqueue(self, work: Call[R] | Flow[R], /, *, connection: object = None) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, work: Iterable[Call[R]], /, *, connection: object = None) -> list[JobHandle[R]]: ...
    @overload
    async def enqueue(self, work: Graph, /, *, connection: object = None) -> list[JobHandle[Any]]: ...
    async def publish(self, topic: str, event: object, /, *, routing_key: str | None = None, connection: object = None) -> list[JobHandle[Any]]: ...
    async def signal(self, *queues: str) -> None: ...
    async def health(self) -> Health: ...
    async def metrics(self, *, names: Literal["perdure", "ruvbot", "celery"] = "perdure") -> str: ...
    async def stats(self, *, window: Duration = 86400, queue: str | None = None, task: str | None = None) -> Stats: ...
    async def migrate(self) -> None: ...
    async def close(self) -> None: ...
    def claim(self, *, tasks: Sequence[str | Task[..., Any]], routing_key: Routing = ..., limit: int = 1, max_wait: Duration = 0.0,
              lease: Duration | None = None) -> AbstractAsyncContextManager[list[Item[Any]]]: ...
    def worker(self, **options: Unpack[WorkerSpec]) -> Worker: ...
    def asgi(self, *, auth: Mapping[str, Role | Access] | Callable[[Any], Role | Access | None] | None = None, hosts: Sequence[str] = (), readonly: bool = False) -> Any: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...

# ---- events told to observers ---------------------------------------------------------------------
class Event:
    at: datetime
class JobDied(Event):
    job: Job
class Alert(Event):
    severity: Literal["warning", "high", "error"]
    title: str
    message: str
    tags: Mapping[str, str]

# ---- errors ---------------------------------------------------------------------------------------
class PerdureError(Exception): ...
class QueueFull(PerdureError): ...
class InvalidCall(PerdureError, ValueError): ...
class NotFound(PerdureError, LookupError): ...
class UnknownParent(InvalidCall): ...
class JobNotSuccessful(PerdureError):
    job: Job
class JobDead(JobNotSuccessful): ...
class JobCancelled(JobNotSuccessful): ...
class JobSkipped(JobNotSuccessful): ...
class ResultTimeout(PerdureError, TimeoutError): ...
class NoLoop(PerdureError, RuntimeError): ...
class NoContext(PerdureError, LookupError): ...
class NoApp(PerdureError, LookupError): ...
class DuplicateTask(PerdureError, ValueError): ...
class IllegalMove(PerdureError): ...
class HoldLost(PerdureError): ...
class StoreError(PerdureError): ...
