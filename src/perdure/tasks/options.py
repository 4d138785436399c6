"""The options of tasks and calls: their types, their checks, and the job template that follows from them.

Layers, each over the one before: the app's defaults, the registry's, the task's own options, `using(…)`. The result is a
`JobTemplate`: everything about a job but its id and payload, so that a call costs little.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from ..core.backoff import Backoff
from ..core.clock import SECOND, SYSTEM, Duration, MicrosReader, datetime_of, due_instant_of, micros_of
from ..core.encoding import codec
from ..core.ids import id_text, new_id
from ..core.job import JobId
from ..core.limit import SEPARATOR, Limit, check_limits, limits_text
from ..core.record import POLICY_DEFAULTS, NewJob, UniformJobs
from ..core.retention import Retention
from ..core.validation import KEY_BYTES, META_BYTES, PARENTS, TAGS, check_key, check_name
from ..errors import InvalidCall
from .suggestions import option_instead

if TYPE_CHECKING:
    from ..client.handle import JobHandle

RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None

_SCOPES = ("waiting", "active", "any", "window")
_PRIORITY = 2**31
MOST_IN_BATCH = 10_000
_NEVER_RUNS = "it would expire before it may begin, and never run: "


@dataclass(frozen=True)
class Unique:
    """One job for a key at a time; a second enqueue returns the handle of the first, with `duplicate` set.

    Scope "waiting" holds the key until the job is first claimed, "active" until it ends, "any" for ever, "window" for
    `window` seconds. Without a key, using(key=…) is taken, else the arguments themselves.

    >>> Unique("event-1", scope="window", window=60).scope
    'window'
    """

    key: str | None = None
    scope: Literal["waiting", "active", "any", "window"] = "active"
    window: Duration | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key, "Unique key")
        if self.scope not in _SCOPES:
            raise InvalidCall(f"Unique scope={self.scope!r} is none of {', '.join(map(repr, _SCOPES))}")
        if (self.scope == "window") != (self.window is not None):
            raise InvalidCall('Unique takes window=… with scope="window", and only then')
        if self.window is not None:
            micros_of(self.window, "Unique window", positive=True)


class TaskDefaults(TypedDict, total=False):
    """Options of a task that an app or registry may set for all."""

    queue: str
    priority: int
    max_attempts: int | None
    timeout: Duration | None
    lease: Duration
    backoff: Backoff
    retry_on: RetryOn
    run_in: Literal["auto", "loop", "thread", "process"]
    concurrency: int | None
    limit: Limit | Sequence[Limit] | None
    unique: Unique | None
    expires: Duration | None
    retention: Retention
    dead_retention: Retention
    critical: bool
    tags: Sequence[str]


class TaskOptions(TaskDefaults, total=False):
    """Options of one task."""

    name: str
    aliases: Sequence[str]


class CallOptions(TypedDict, total=False):
    """Options of one call: `task.using(…)`."""

    delay: Duration | None
    at: datetime | None
    queue: str
    priority: int
    key: str | None
    unique: Unique | None
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


class JobTemplate:
    """Everything about a job but its id and payload. `now` reads the clock by which `at` must come before `expires`."""

    __slots__ = ("_now", "_too_early", "connection", "hashes_arguments", "template")

    def __init__(self, task: str, options: Mapping[str, Any], now: MicrosReader = SYSTEM.micros) -> None:
        check_expiry(options, task)
        self.connection: object = options.get("connection")
        unique: Unique | None = options.get("unique")
        key: str | None = options.get("key")
        tenant: str | None = options.get("tenant")
        unique_key = None if unique is None else unique.key or key
        self.hashes_arguments = unique is not None and unique_key is None
        after = _parent_ids(options["after"]) if options.get("after") else []
        self.template = NewJob(
            id="",
            task=task,
            payload="",
            **POLICY_DEFAULTS
            | {name: stored_as(options[name]) for name, stored_as in _STORED_AS.items() if name in options},
            key=key,
            tenant=tenant,
            unique_key=None if unique_key is None else unique_text(task, tenant, unique_key),
            unique_scope=None if unique is None else unique.scope,
            unique_window=None if unique is None else _micros(unique.window),
            after=parents_text(task, after),
            waits=len(after),
            limits=limits_text(options.get("limit"), task, key, tenant, options.get("routing_key")),
        )
        self._now = now
        at, expires = self.template.at, self.template.expires
        # a job that is enqueued by then is over before its time has come
        self._too_early = None if at is None or expires is None else at - expires

    @property
    def brief(self) -> bool:
        """Whether its jobs are kept for a short time only, once they have ended."""
        return any(Retention.parse(text).brief for text in (self.template.retention, self.template.dead_retention))

    def job(self, payload: str, hash_of: Callable[[str], str], id: str | None = None) -> NewJob:
        """The job of one call."""
        template = self.template
        if self._too_early is not None:
            self._check_instant()
        if self.hashes_arguments:
            key = unique_text(template.task, template.tenant, hash_of(payload))
            return msgspec.structs.replace(template, id=id or new_id(), payload=payload, unique_key=key)
        return msgspec.structs.replace(template, id=id or new_id(), payload=payload)

    def jobs(self, payloads: Sequence[str], hash_of: Callable[[str], str], ids: Sequence[str]) -> Sequence[NewJob]:
        """The jobs of many calls."""
        if self.hashes_arguments:
            return [self.job(payload, hash_of, id) for payload, id in zip(payloads, ids, strict=True)]
        if self._too_early is not None:
            self._check_instant()
        return UniformJobs(self.template, ids, payloads)

    def _check_instant(self) -> None:
        template = self.template
        assert self._too_early is not None
        if self._now() <= self._too_early:
            at, expires = datetime_of(template.at or 0), (template.expires or 0) / SECOND
            raise InvalidCall(f"{template.task}: {_NEVER_RUNS}at={at.isoformat()}, and expires={expires:g} s after now")


def unique_text(task: str, tenant: str | None, key: str) -> str:
    """A key is unique per task and tenant."""
    text = SEPARATOR.join((task, tenant or "", key))
    if len(text.encode()) > KEY_BYTES:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return text


# ---- checks ----------------------------------------------------------------------------------------
def check_defaults(options: Mapping[str, Any], who: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """Options that hold for many tasks; `others` are those that were taken before."""
    return _check_options(options, _TASK, who, others)


def check_task_options(options: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Options of one task."""
    return _check_options(options, _TASK | _NAMES, who)


def check_call_options(options: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Options of `using(…)`."""
    checked = _check_options(options, _CALL, who)
    if checked.get("delay") is not None and checked.get("at") is not None:
        raise InvalidCall(f"{who}: delay= and at= exclude each other")
    return checked


def check_expiry(options: Mapping[str, Any], who: str) -> None:
    """InvalidCall when a job would expire before its delay is over."""
    delay, expires = options.get("delay"), options.get("expires")
    if delay is None or expires is None:
        return
    after, ends = micros_of(delay), micros_of(expires)
    if after >= ends:
        raise InvalidCall(f"{who}: {_NEVER_RUNS}delay={after / SECOND:g} s, expires={ends / SECOND:g} s")


def check_size(value: Any, what: str) -> int:
    """How many jobs may be together in a batch."""
    _whole(1, MOST_IN_BATCH)(value, what)
    return int(value)


def _check_options(
    options: Mapping[str, Any], known: Mapping[str, Callable[[Any, str], object]], who: str, others: Sequence[str] = ()
) -> dict[str, Any]:
    for name, value in options.items():
        check = known.get(name)
        if check is None:
            names = sorted((*known, *others))
            advice = option_instead(name, names)
            told = f"{who} has no option {name!r}; {f'{advice}; ' if advice else ''}it knows {', '.join(names)}"
            raise InvalidCall(told)
        check(value, f"{who}: {name}")
    return dict(options)


def _whole(least: int, most: int) -> Callable[[Any, str], object]:
    def check(value: Any, what: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidCall(f"{what} must be a whole number, not {type(value).__name__}")
        if not least <= value <= most:
            raise InvalidCall(f"{what} must be between {least} and {most}, it is {value}")

    return check


def _one_of(kind: type, example: str) -> Callable[[Any, str], object]:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise InvalidCall(f"{what} takes {example}, not {type(value).__name__}")

    return check


def _or_none(check: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
    return lambda value, what: None if value is None else check(value, what)


def _positive(value: Any, what: str) -> None:
    micros_of(value, what, positive=True)


def _check_retry_on(value: Any, what: str) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if isinstance(kind, type) and not issubclass(kind, BaseException):
            raise InvalidCall(f"{what} takes exception types or a predicate, not {kind.__name__}")
        if not callable(kind) or (isinstance(value, tuple) and not isinstance(kind, type)):
            raise InvalidCall(f"{what} takes exception types or a predicate, not {type(kind).__name__}")


def _check_run_in(value: Any, what: str) -> None:
    if value not in ("auto", "loop", "thread", "process"):
        raise InvalidCall(f"{what}={value!r} is none of 'auto', 'loop', 'thread', 'process'")


def _check_tags(value: Any, what: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidCall(f"{what} takes a list of texts, not {type(value).__name__}")
    if len(value) > TAGS:
        raise InvalidCall(f"{what} has {len(value)} entries; at most {TAGS} are allowed")
    for position, tag in enumerate(value):
        check_name(tag, f"{what}[{position}]")


def _check_meta(value: Any, what: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidCall(f"{what} takes a mapping of texts, not {type(value).__name__}")
    for name, text in value.items():
        check_name(name, f"{what} key")
        if not isinstance(text, str):
            raise InvalidCall(f"{what}[{name!r}] must be a text, not {type(text).__name__}")
    codec.encode(dict(value), what, META_BYTES)


def parents_text(task: str, ids: Sequence[str]) -> str | None:
    """Whom a job waits for, as it is written on it."""
    if len(ids) > PARENTS:
        raise InvalidCall(f"{task}: after= names {len(ids)} jobs, more than {PARENTS}; join them in several steps")
    return codec.encode(ids, "after", limit=40 * PARENTS) if ids else None


def _parent_ids(parents: Sequence[JobHandle[Any] | JobId | str]) -> list[str]:
    from ..client.handle import ids_of

    return list(dict.fromkeys(ids_of(parents)))


def _check_after(value: Any, what: str) -> None:
    from ..client.handle import each_of

    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidCall(f"{what} takes a list of handles or ids, not {type(value).__name__}")
    for position, parent in enumerate(each_of(value)):
        text = id_text(parent, f"{what}[{position}]")
        if getattr(parent, "dropped", False):
            raise InvalidCall(f"{what}: job {text} was dropped because its queue was full; it never ends")


def _check_run_when(value: Any, what: str) -> None:
    if value not in ("succeeded", "finished"):
        raise InvalidCall(f'{what}={value!r} is neither "succeeded" nor "finished"')


_ANY_QUEUE: dict[str, Callable[[Any, str], object]] = {
    "queue": check_name,
    "priority": _whole(-_PRIORITY, _PRIORITY - 1),
    "max_attempts": _or_none(_whole(1, _PRIORITY - 1)),
    "timeout": _or_none(_positive),
    "expires": _or_none(_positive),
    "backoff": _one_of(Backoff, "Backoff.exponential(…) or Backoff.fixed(…)"),
    "retention": _one_of(Retention, "Retention.keep(…) or Retention.delete()"),
    "dead_retention": _one_of(Retention, "Retention.keep(…) or Retention.delete()"),
    "unique": _or_none(_one_of(Unique, "Unique(…)")),
    "tags": _check_tags,
}
_TASK = _ANY_QUEUE | {
    "lease": _positive,
    "retry_on": _or_none(_check_retry_on),
    "run_in": _check_run_in,
    "concurrency": _or_none(_whole(1, _PRIORITY - 1)),
    "limit": _or_none(check_limits),
    "critical": _one_of(bool, "True or False"),
}
_NAMES: dict[str, Callable[[Any, str], object]] = {"name": check_name, "aliases": _check_tags}
_CALL = _ANY_QUEUE | {
    "delay": _or_none(micros_of),
    "at": _or_none(due_instant_of),
    "key": _or_none(check_key),
    "tenant": _or_none(check_name),
    "routing_key": _or_none(check_name),
    "meta": _check_meta,
    "after": _check_after,
    "run_when": _check_run_when,
    "connection": lambda value, what: None,
}
OPTIONS_OF_CALLS = frozenset(_CALL)


# ---- to what is stored -----------------------------------------------------------------------------
def _same(value: Any) -> Any:
    return value


def _text(value: Backoff | Retention) -> str:
    return value.text()


def _micros(duration: Duration | None) -> int | None:
    return None if duration is None else micros_of(duration)


def _delay(duration: Duration | None) -> int:
    return 0 if duration is None else micros_of(duration)


def _instant(moment: datetime | None) -> int | None:
    return None if moment is None else due_instant_of(moment, "at")


def _tags_text(tags: Sequence[str]) -> str | None:
    return codec.encode(list(dict.fromkeys(tags)), "tags") if tags else None


def _meta_text(meta: Mapping[str, str] | None) -> str | None:
    return codec.encode(dict(meta), "meta") if meta else None


# how the value of an option is stored on a job; an option that is not given has the default of `NewJob`
_STORED_AS: dict[str, Callable[[Any], Any]] = {
    "queue": _same,
    "priority": _same,
    "delay": _delay,
    "at": _instant,
    "expires": _micros,
    "max_attempts": _same,
    "timeout": _micros,
    "lease": _micros,
    "backoff": _text,
    "retention": _text,
    "dead_retention": _text,
    "routing_key": _same,
    "tags": _tags_text,
    "meta": _meta_text,
    "run_when": _same,
}
