"""The layout of rows and bodies, and how jobs are packed into them.

A job is two values. Its *body*, written once, holds what never changes and what only Python reads: the payload, the
retry rules, tags and the like, as a MessagePack array of texts. Its *row* is a short struct that the scripts read and
rewrite: state, counters, times, hold (its layout is in lua/constants.lua). No script ever looks into a text, so texts come
back bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from hashlib import blake2b
from struct import Struct, error

import msgspec

from perdure.core.clock import check_due
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, decide
from perdure.core.record import NewJob, Record
from perdure.core.retention import Retention
from perdure.storage.contract import PARENT_CANCELLED
from perdure.storage.rules.limits import limits_of

from .keys import escape, lane_of, names_of, parts_of, require_id, stamp_bytes

UNREADABLE = (error, msgspec.MsgspecError, ValueError, IndexError, OverflowError)  # what reading a job may raise
NONE = -9007199254740992.0  # "no number", as in lua/constants.lua
STATES = (
    State.BLOCKED,
    State.SCHEDULED,
    State.READY,
    State.RUNNING,
    State.SUCCEEDED,
    State.SKIPPED,
    State.DEAD,
    State.CANCELLED,
)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES, start=1)}
SCOPES = (None, "waiting", "active", "any", "window")
SCOPE_NUMBERS = {scope: number for number, scope in enumerate(SCOPES)}

SUSPECT, PARKED, HIDDEN, HOLDS_KEY, OUTCOME, ERRORS, PROGRESS, LOG = 1, 2, 4, 8, 16, 32, 64, 128
RAN, HELD, ACCEPTED_STAMP, FOLLOWED = 256, 512, 1024, 2048
LIMITED, WAITED, FINISHED, FAIR = 4096, 8192, 16384, 32768
MARKS = {
    "suspect": SUSPECT,
    "parked": PARKED,
    "hidden": HIDDEN,
    "holds_key": HOLDS_KEY,
    "followed": FOLLOWED,
}  # of a row, by field
HEAD = Struct("<BHI")
RUN = Struct("<III8s8sdddddH")
FIRST = Struct("<dBH")
REST = Struct("<iIBdddd")
LENGTH = Struct("<H")
_CANCELLED = Struct("<Bdd")  # what a cancel with its parent means for a job: hidden, keep, keep_last
_LIMIT = Struct("<ddd")
_LARGEST = 1 << 53
_LARGEST_COUNTER = (1 << 32) - 1
NO_SCOPE = 255  # stands for a scope that is none of ours
_UNKNOWN = _CANCELLED.pack(2, NONE, NONE)  # how long a job is kept cannot be read


# ---- what few rows have ----------------------------------------------------------------------------
def more_of(job: NewJob | Record, next_id: str | None = None) -> bytes:
    """The end of a row, for a job with limits, parents or a next one: see MORE in lua/constants.lua."""
    if job.limits is job.after is next_id is None:
        return b""
    gate = b"" if job.limits is None else gate_of(job.limits)
    following = b"" if next_id is None else require_id(next_id)
    return _with_length(gate) + _with_length(following) + _pack_cancellation(job.retention)


def _with_length(text: bytes) -> bytes:
    return LENGTH.pack(len(text)) + text


@lru_cache(maxsize=4096)
def gate_of(limits: str) -> bytes:
    """A digest of these limits (16 bytes), then each of them."""
    parts = [blake2b(limits.encode(), digest_size=16).digest()]
    for limit in limits_of(limits):
        numbers = (_or_none(number) for number in (limit.most, limit.starts, limit.window))
        parts += (_with_length(escape(limit.key)), _LIMIT.pack(*numbers))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _pack_cancellation(retention: str) -> bytes:
    waiting = copy(template_of(lane_of("", "", None)))
    waiting.state, waiting.retention = State.BLOCKED, retention
    try:
        Retention.parse(retention)
    except UNREADABLE:
        return _UNKNOWN
    change = decide(waiting, Cancelled(PARENT_CANCELLED))
    return _CANCELLED.pack(change.hidden, _or_none(change.keep), keep_last_of(change.keep_last))


def keep_last_of(keep_last: int | None) -> float:
    return NONE if keep_last is None else min(keep_last, _LARGEST)


# ---- bodies ----------------------------------------------------------------------------------------
# What None stands for in a body: the values that nearly every job has. They are part of the format and never change,
# whatever Perdure's defaults become.
BACKOFF = '["exponential",1000000,2.0,3600000000,0]'
RETENTION = '{"age":604800000000}'
DEAD_RETENTION = "{}"
BODY_DEFAULTS = {
    "backoff": BACKOFF,
    "retention": RETENTION,
    "dead_retention": DEAD_RETENTION,
    "run_when": "succeeded",
}


class Body(msgspec.Struct, array_like=True, gc=False):
    """The fields of a job that never change and are not in its row."""

    payload: str
    max_attempts: int | None
    timeout: int | None
    backoff: str | None
    retention: str | None
    dead_retention: str | None
    tenant: str | None
    tags: str | None
    meta: str | None
    after: str | None
    run_when: str | None
    limits: str | None


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """Result and reason of a job that ended; they are always written together."""

    result: str | None
    reason: str | None


encode = msgspec.msgpack.Encoder().encode
BODY_START = bytes([0x90 | len(Body.__struct_fields__)])  # how a body begins: a list of so many


def body_of(job: NewJob | Record) -> bytes:
    return encode(
        (
            job.payload,
            job.max_attempts,
            job.timeout,
            None if job.backoff == BACKOFF else job.backoff,
            None if job.retention == RETENTION else job.retention,
            None if job.dead_retention == DEAD_RETENTION else job.dead_retention,
            job.tenant,
            job.tags,
            job.meta,
            job.after,
            None if job.run_when == "succeeded" else job.run_when,
            job.limits,
        )
    )


def bodies_of(template: NewJob, payloads: Iterable[str]) -> list[bytes]:
    """The bodies of jobs that differ only in their payload, which comes first."""
    whole = body_of(template)
    behind = whole[1 + len(encode(template.payload)) :]
    return [BODY_START + encode(payload) + behind for payload in payloads]


def position_of_after(job: NewJob) -> tuple[int, int]:
    """The position of `after` in the body: its first byte, and the first byte behind it."""
    behind = encode((None if job.run_when == "succeeded" else job.run_when, job.limits))
    ends = len(body_of(job)) - len(behind) + 1
    return ends - len(encode(job.after)), ends


def outcome_of(result: str | None, reason: str | None) -> bytes:
    return encode((result, reason))


# ---- rows ------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def template_of(lane: bytes) -> Record:
    queue, task, routing = parts_of(lane)
    return Record(
        id="",
        task=task,
        queue=queue,
        routing_key=routing,
        state=State.READY,
        priority=0,
        rank=0,
        payload="",
        version=0,
        attempt=0,
        failures=0,
        losses=0,
        max_attempts=None,
        timeout=None,
        lease=0,
        backoff="",
        retention="",
        dead_retention="",
        created_at=0,
        run_at=0,
    )


def row_of(record: Record, *, has_log: bool) -> bytes:
    """Pack the row of a record from another store. Scripts make the rows of enqueued jobs."""
    marks = (
        RAN
        | record.suspect * SUSPECT
        | record.parked * PARKED
        | record.hidden * HIDDEN
        | record.holds_key * HOLDS_KEY
        | (record.result is not None or record.reason is not None) * OUTCOME
        | (record.errors is not None) * ERRORS
        | (record.progress is not None) * PROGRESS
        | has_log * LOG
        | (record.stamp is not None) * HELD
        | (record.accepted_stamp is not None) * ACCEPTED_STAMP
        | record.followed * FOLLOWED
        | (record.limits is not None) * LIMITED
        | (record.after is not None) * WAITED
        | (record.run_when == "finished") * FINISHED
        | (record.rank != record.run_at) * FAIR
    )
    leased_by = (record.leased_by or "").encode()
    lane = lane_of(record.queue, record.task, record.routing_key)
    unique = (record.unique_key or "").encode()
    names = names_of(record)
    parts = (
        HEAD.pack(STATE_NUMBERS[record.state], marks, _fit(record.version)),
        RUN.pack(
            _fit(record.attempt),
            _fit(record.failures),
            _fit(record.losses),
            stamp_bytes(record.stamp or 0),
            stamp_bytes(record.accepted_stamp or 0),
            *map(
                _or_none,
                (record.leased_until, record.started_at, record.finished_at, record.prune_at, record.keep_last),
            ),
            len(leased_by),
        ),
        leased_by,
        FIRST.pack(record.lease, SCOPE_NUMBERS.get(record.unique_scope, NO_SCOPE), len(lane)),
        lane,
        REST.pack(
            record.priority,
            _fit(record.waits),
            min(record.min_version, 255),
            record.created_at,
            check_due(record.run_at, "run_at"),
            record.rank,
            _or_none(record.expires_at),
        ),
        _with_length(unique),
        _with_length(names),
        more_of(record, record.next_id),
    )
    return b"".join(parts)


def _or_none(number: int | None) -> float:
    return NONE if number is None else number


def _fit(number: int) -> int:
    """A counter as four bytes. One that is too large cannot be read afterwards: see lua/constants.lua."""
    return min(max(number, 0), _LARGEST_COUNTER)
