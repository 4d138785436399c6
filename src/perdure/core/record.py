"""A job as it is stored: the new job, the record, the hold of a worker, and how a record becomes the public Job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, overload
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec

from .backoff import DEFAULT_BACKOFF
from .clock import SECOND, datetime_of, optional_datetime, seconds_of
from .job import AttemptError, Job, JobId, State
from .retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION

ROW_VERSION = 1  # the oldest version of Perdure's rules that may claim a row written by this one


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
    """The proof that a worker has the job: this attempt, marked by the claim's random stamp."""

    id: str
    attempt: int
    stamp: int


class NewJob(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A job that is to be stored. Durations are microseconds from the moment it is stored. The defaults here and
    in `POLICY_DEFAULTS` are those of every job: the options of tasks and calls have no others."""

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
    limits: str | None = None  # what it runs under: see `storage.rules.limits`
    min_version: int = ROW_VERSION


# no defaults of the struct: a row of an outbox without these fields is none of ours
POLICY_DEFAULTS: Final = {
    "backoff": DEFAULT_BACKOFF.text(),
    "retention": DEFAULT_RETENTION.text(),
    "dead_retention": DEFAULT_DEAD_RETENTION.text(),
}


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The defaults of a struct by field, in the order of its fields."""
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    return dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True))


class UniformJobs(Sequence[NewJob]):
    """New jobs that differ only in their ids and payloads, as those of a long list mostly do. A store that can write them
    together uses the template, ids and payloads. For other stores the jobs are built when they are read."""

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
            return UniformJobs(self.template, self.ids[place], self.payloads[place])
        return self._jobs()[place]

    def _jobs(self) -> list[NewJob]:
        if self._made is None:
            given = zip(self.ids, self.payloads, strict=True)
            self._made = [msgspec.structs.replace(self.template, id=id, payload=payload) for id, payload in given]
        return self._made


class Record(msgspec.Struct, gc=False, kw_only=True):
    """A job as a store keeps it. Only the memory store changes a record in place."""

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
    accepted_stamp: int | None = None  # stamp of the last hold whose report was accepted
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


# the reason of a job whose row could not be read begins so; the names of the fields follow
UNREADABLE: Final = "unreadable: "


# a job that lost one of these can run again: the neutral value changes neither what runs nor beside what it runs
HARMLESS_FLAWS: Final = frozenset(
    """
    attempt failures losses version rank created_at run_at started_at finished_at expires_at prune_at keep_last stamp
    accepted_stamp leased_by leased_until suspect parked hidden holds_key result progress errors reason tags meta waits
    followed next_id max_attempts timeout lease backoff retention dead_retention state
    """.split()  # noqa: SIM905
)


def unreadable_fields(reason: str | None) -> tuple[str, ...]:
    """The fields that could not be read, of a job that was set aside for that; empty for any other job."""
    if reason is None or not reason.startswith(UNREADABLE):
        return ()
    return tuple(reason.removeprefix(UNREADABLE).split(", "))


def job_of(record: Record) -> Job:
    """The job that users see of a record. It raises nothing: the reason names a JSON text that cannot be read."""
    try:
        return _job_of(record)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
        return _job_of(_without_flaws(record))


def _without_flaws(record: Record) -> Record:
    """The record without the texts that are no JSON, or not the JSON that they should be."""
    flaws = [name for name, reads in _TEXTS.items() if not _reads(reads, getattr(record, name))]
    plain = msgspec.structs.replace(record, **dict.fromkeys(flaws))
    if not unreadable_fields(record.reason):
        plain.reason = f"{UNREADABLE}{', '.join(flaws)}"
    return plain


def _reads(read: Callable[[Any], object], text: str | None) -> bool:
    try:
        read(text)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
        return False
    return True


def _id_of(text: str) -> JobId:
    """The id of a job. A row that was written by hand may have another text there: then a UUID made of it."""
    try:
        return UUID(text)
    except ValueError:
        return uuid5(NAMESPACE_OID, text.encode("utf-8", "backslashreplace").decode())


def _job_of(record: Record) -> Job:
    return Job(
        id=_id_of(record.id),
        task=record.task,
        queue=record.queue,
        state=State(record.state),
        priority=record.priority,
        attempt=record.attempt,
        failures=record.failures,
        losses=record.losses,
        max_attempts=record.max_attempts,
        payload=record.payload,
        result=_decode(record.result),
        progress=_decode(record.progress),
        errors=tuple(_error_of(fault) for fault in faults_of(record.errors)),
        reason=record.reason,
        key=record.key,
        tenant=record.tenant,
        routing_key=record.routing_key,
        tags=_tags(record.tags),
        meta=_meta(record.meta),
        chain_id=_id_of(record.chain_id or record.id),
        after=_parents(record.after),
        created_at=datetime_of(record.created_at),
        run_at=datetime_of(record.run_at),
        started_at=optional_datetime(record.started_at),
        finished_at=optional_datetime(record.finished_at),
        expires_at=optional_datetime(record.expires_at),
        leased_by=record.leased_by,
        leased_until=optional_datetime(record.leased_until),
        timeout=seconds_of(record.timeout),
        next_id=None if record.next_id is None else _id_of(record.next_id),
    )


_faults = msgspec.json.Decoder(list[Fault])


_anything = msgspec.json.Decoder()


_array = msgspec.json.Decoder(list[Any])


_object = msgspec.json.Decoder(dict[str, Any])


_ids = msgspec.json.Decoder(list[str])


def faults_of(errors: str | None) -> list[Fault]:
    return [] if errors is None else _faults.decode(errors)


def faults_text(faults: list[Fault]) -> str:
    return msgspec.json.encode(faults).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else _anything.decode(text)


def _tags(text: str | None) -> tuple[Any, ...]:
    return () if text is None else tuple(_array.decode(text))


def _meta(text: str | None) -> dict[str, Any]:
    return {} if text is None else _object.decode(text)


def _parents(text: str | None) -> tuple[JobId, ...]:
    return () if text is None else tuple(_id_of(parent) for parent in _ids.decode(text))


_TEXTS: Final[dict[str, Callable[[str | None], object]]] = {
    "result": _decode,
    "progress": _decode,
    "errors": faults_of,
    "tags": _tags,
    "meta": _meta,
    "after": _parents,
}


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
