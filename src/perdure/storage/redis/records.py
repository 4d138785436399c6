"""Rows and bodies as bytes, and records made of them.

A job is two values. Its *body*, written once, holds what never changes and what only Python reads: the payload, the
retry rules, tags and the like, as a MessagePack array of texts. Its *row* is a short struct that the scripts read and
rewrite: state, counters, times, hold (its layout is in lua/constants.lua). No script ever looks into a text, so texts come
back bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from hashlib import blake2b
from struct import Struct, error
from typing import Any, NamedTuple

import msgspec

from perdure.core.clock import check_due
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, decide
from perdure.core.record import NewJob, Record
from perdure.core.retention import Retention
from perdure.storage.contract import PARENT_CANCELLED
from perdure.storage.rules.limits import limits_of
from perdure.storage.rules.unreadable import flaw_of

from .keys import STAMP, checked_id, escaped, id_text, id_texts, lane_of, names_of, parts_of, plain, stamp_bytes

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

_SUSPECT, _PARKED, _HIDDEN, _HOLDS_KEY, _OUTCOME, _ERRORS, _PROGRESS, _LOG = 1, 2, 4, 8, 16, 32, 64, 128
_RAN, _HELD, _ACCEPTED_STAMP, _FOLLOWED = 256, 512, 1024, 2048
_LIMITED, _WAITED, _FINISHED, _FAIR = 4096, 8192, 16384, 32768
_TEXTS = _OUTCOME | _ERRORS | _PROGRESS
MARKS = {
    "suspect": _SUSPECT,
    "parked": _PARKED,
    "hidden": _HIDDEN,
    "holds_key": _HOLDS_KEY,
    "followed": _FOLLOWED,
}  # of a row, by field
_HEAD = Struct("<BHI")
_RUN = Struct("<III8s8sdddddH")
_FIRST = Struct("<dBH")
_REST = Struct("<iIBdddd")
_LENGTH = Struct("<H")
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
    following = b"" if next_id is None else checked_id(next_id)
    return _sized(gate) + _sized(following) + _cancelled(job.retention)


def _sized(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


@lru_cache(maxsize=4096)
def gate_of(limits: str) -> bytes:
    """Sixteen bytes that stand for these limits, then each of them."""
    parts = [blake2b(limits.encode(), digest_size=16).digest()]
    for limit in limits_of(limits):
        numbers = (_or_none(number) for number in (limit.most, limit.starts, limit.window))
        parts += (_sized(escaped(limit.key)), _LIMIT.pack(*numbers))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _cancelled(retention: str) -> bytes:
    waiting = copy(_template(lane_of("", "", None)))
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
_BACKOFF = '["exponential",1000000,2.0,3600000000,0]'
_RETENTION = '{"age":604800000000}'
_DEAD_RETENTION = "{}"
BODY_DEFAULTS = {
    "backoff": _BACKOFF,
    "retention": _RETENTION,
    "dead_retention": _DEAD_RETENTION,
    "run_when": "succeeded",
}


class Body(msgspec.Struct, array_like=True, gc=False):
    """What never changes about a job, but for what stands in its row."""

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
    """What a change says of a job's end; the two are always written together."""

    result: str | None
    reason: str | None


_encode = msgspec.msgpack.Encoder().encode
_FIELDS = bytes([0x90 | len(Body.__struct_fields__)])  # how a body begins: a list of so many
_body = msgspec.msgpack.Decoder(Body)
_outcome = msgspec.msgpack.Decoder(Outcome)


def body_of(job: NewJob | Record) -> bytes:
    return _encode(
        (
            job.payload,
            job.max_attempts,
            job.timeout,
            None if job.backoff == _BACKOFF else job.backoff,
            None if job.retention == _RETENTION else job.retention,
            None if job.dead_retention == _DEAD_RETENTION else job.dead_retention,
            job.tenant,
            job.tags,
            job.meta,
            job.after,
            None if job.run_when == "succeeded" else job.run_when,
            job.limits,
        )
    )


def bodies_of(template: NewJob, payloads: Iterable[str]) -> list[bytes]:
    """The bodies of jobs that have nothing of their own but their payload, which stands first."""
    whole = body_of(template)
    behind = whole[1 + len(_encode(template.payload)) :]
    return [_FIELDS + _encode(payload) + behind for payload in payloads]


def place_of_after(job: NewJob) -> tuple[int, int]:
    """Where `after` stands in the body: how many bytes come before it, and how many it ends with."""
    behind = _encode((None if job.run_when == "succeeded" else job.run_when, job.limits))
    ends = len(body_of(job)) - len(behind) + 1
    return ends - len(_encode(job.after)), ends


def outcome_of(result: str | None, reason: str | None) -> bytes:
    return _encode((result, reason))


# ---- records ---------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def _template(lane: bytes) -> Record:
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


class Raw(NamedTuple):
    """A job as its keys hold it. None: there is nothing."""

    id: bytes
    row: bytes | None
    body: bytes | None
    outcome: bytes | None = None
    errors: bytes | None = None
    progress: bytes | None = None


class Told(NamedTuple):
    """The jobs in an answer: those that can be read, and the others."""

    records: list[Record]
    unread: list[Raw]


def records_of(told: Sequence[bytes]) -> Told:
    """The jobs in an answer of `tell`: id, row, body and the texts that the row's marks tell of."""
    unread: list[Raw] = []
    return Told(list(_records(iter(told), unread)), unread)


def claimed_of(told: Sequence[Any]) -> Told:
    """The jobs that a claim brought: as above, or as lua/fast_claim.lua tells them, by row."""
    if not told or isinstance(told[0], bytes):
        return records_of(told)
    unread: list[Raw] = []
    return Told([record for row, ids, bodies in told for record in _alike(row, ids, bodies, unread)], unread)


def _alike(row: bytes, ids: bytes, bodies: Sequence[bytes | None], unread: list[Raw]) -> Iterator[Record]:
    """Records with the same row. What their bodies have behind the payload is mostly the same, too, and read once."""
    try:
        pattern = _of_row(row)
    except UNREADABLE:
        unread += [Raw(ids[16 * at : 16 * at + 16], row, body) for at, body in enumerate(bodies)]
        return
    another = pattern.__copy__  # type: ignore[attr-defined]
    rest: bytes | None = None
    for at, (id, given) in enumerate(zip(id_texts(ids), bodies, strict=True)):
        body = given or b""
        try:
            begin, end = _payload_in(body)
            if body[end:] != rest:
                rest = None
                _add_body(pattern, _body.decode(body))
                pattern.id = id
                _check(pattern)
                rest = body[end:]
            record = another()
            record.id, record.payload = id, body[begin:end].decode()
        except UNREADABLE:
            unread.append(Raw(ids[16 * at : 16 * at + 16], row, given))
            continue
        yield record


def _check(record: Record) -> None:
    if (flaw := flaw_of(record)) is not None:
        raise ValueError(flaw)


def _payload_in(body: bytes) -> tuple[int, int]:
    """Where a body's payload begins and ends. Read by hand, because what follows is to be compared, not read."""
    if body[:1] != _FIELDS:
        raise ValueError("no body begins so")
    match body[1]:
        case 0xD9:
            return 3, 3 + body[2]
        case 0xDA:
            return 4, 4 + int.from_bytes(body[2:4])
        case 0xDB:
            return 6, 6 + int.from_bytes(body[2:6])
        case short if short & 0xE0 == 0xA0:
            return 2, 2 + (short & 0x1F)
    raise ValueError("the payload is no text")


def row_of(record: Record, *, has_log: bool) -> bytes:
    """The row of a record that comes from elsewhere. Jobs that are enqueued get theirs from the script."""
    marks = (
        _RAN
        | record.suspect * _SUSPECT
        | record.parked * _PARKED
        | record.hidden * _HIDDEN
        | record.holds_key * _HOLDS_KEY
        | (record.result is not None or record.reason is not None) * _OUTCOME
        | (record.errors is not None) * _ERRORS
        | (record.progress is not None) * _PROGRESS
        | has_log * _LOG
        | (record.stamp is not None) * _HELD
        | (record.accepted_stamp is not None) * _ACCEPTED_STAMP
        | record.followed * _FOLLOWED
        | (record.limits is not None) * _LIMITED
        | (record.after is not None) * _WAITED
        | (record.run_when == "finished") * _FINISHED
        | (record.rank != record.run_at) * _FAIR
    )
    leased_by = (record.leased_by or "").encode()
    lane = lane_of(record.queue, record.task, record.routing_key)
    unique = (record.unique_key or "").encode()
    names = names_of(record)
    parts = (
        _HEAD.pack(STATE_NUMBERS[record.state], marks, _fitting(record.version)),
        _RUN.pack(
            _fitting(record.attempt),
            _fitting(record.failures),
            _fitting(record.losses),
            stamp_bytes(record.stamp or 0),
            stamp_bytes(record.accepted_stamp or 0),
            *map(
                _or_none,
                (record.leased_until, record.started_at, record.finished_at, record.prune_at, record.keep_last),
            ),
            len(leased_by),
        ),
        leased_by,
        _FIRST.pack(record.lease, SCOPE_NUMBERS.get(record.unique_scope, NO_SCOPE), len(lane)),
        lane,
        _REST.pack(
            record.priority,
            _fitting(record.waits),
            min(record.min_version, 255),
            record.created_at,
            check_due(record.run_at, "run_at"),
            record.rank,
            _or_none(record.expires_at),
        ),
        _sized(unique),
        _sized(names),
        more_of(record, record.next_id),
    )
    return b"".join(parts)


def _or_none(number: int | None) -> float:
    return NONE if number is None else number


def _fitting(number: int) -> int:
    """A counter as four bytes. One that is too large cannot be read afterwards: see lua/constants.lua."""
    return min(max(number, 0), _LARGEST_COUNTER)


def _records(told: Iterator[bytes], unread: list[Raw]) -> Iterator[Record]:
    """Jobs that were enqueued and claimed together have the same row, which is read once for all of them."""
    last, pattern = b"", None
    for id in told:
        row, body = next(told), next(told)
        marks = int.from_bytes(row[1:3], "little") if len(row) > 2 else 0
        texts = (
            [next(told) if marks & mark else None for mark in (_OUTCOME, _ERRORS, _PROGRESS)] if marks & _TEXTS else ()
        )
        try:
            if pattern is None or row != last:
                pattern = None
                last, pattern = row, _of_row(row)
            record = copy(pattern)
            record.id = id_text(id)
            _add_body(record, _body.decode(body))
            if texts:
                _add_texts(record, *texts)
            _check(record)
        except UNREADABLE:
            unread.append(Raw(id, row, body, *texts))
            continue
        yield record


def _add_texts(record: Record, outcome: bytes | None, errors: bytes | None, progress: bytes | None) -> None:
    """A text that its row tells of may be lost; then it is empty."""
    if outcome:
        said = _outcome.decode(outcome)
        record.result, record.reason = said.result, said.reason
    if errors:
        record.errors = errors.decode()
    if progress:
        record.progress = progress.decode()


def _of_row(row: bytes) -> Record:
    state, marks, version = _HEAD.unpack_from(row)
    run_ends = _HEAD.size
    if marks & _RAN:
        run = _RUN.unpack_from(row, _HEAD.size)
        run_ends += _RUN.size + run[-1]
    lease, scope, length = _FIRST.unpack_from(row, run_ends)
    at = run_ends + _FIRST.size + length
    record = copy(_template(row[at - length : at]))
    priority, waits, min_version, created_at, run_at, rank, expires_at = _REST.unpack_from(row, at)
    record.state = _state_of(state)
    record.version = version
    record.priority = priority
    record.waits = waits
    record.min_version = min_version
    record.created_at = int(created_at)
    record.run_at = int(run_at)
    record.rank = int(rank)
    record.lease = int(lease)
    if expires_at != NONE:
        record.expires_at = int(expires_at)
    if marks & 0xF:
        record.suspect = bool(marks & _SUSPECT)
        record.parked = bool(marks & _PARKED)
        record.hidden = bool(marks & _HIDDEN)
        record.holds_key = bool(marks & _HOLDS_KEY)
    if marks & _FOLLOWED:
        record.followed = True
    if marks & _RAN:
        _add_run(record, marks, run, row[run_ends - run[-1] : run_ends])
    if scope or len(row) > at + _REST.size + 4:
        _add_names(record, row, at + _REST.size, scope)
    return record


def _state_of(number: int) -> State:
    if not 1 <= number <= len(STATES):
        raise ValueError(f"no state has the number {number}")
    return STATES[number - 1]


def _add_names(record: Record, row: bytes, at: int, scope: int) -> None:
    """The unique key, and what it can be found by."""
    (length,) = _LENGTH.unpack_from(row, at)
    at += 2 + length
    if length:
        record.unique_key = row[at - length : at].decode()
    record.unique_scope = SCOPES[scope]
    (length,) = _LENGTH.unpack_from(row, at)
    at += 2 + length
    for name in row[at - length : at].split(b"\x00")[:-1]:
        if name[:1] == b"k":
            record.key = plain(name[1:])
        else:
            record.chain_id = plain(name[1:])
    if len(row) > at:
        _add_more(record, row, at)


def _add_more(record: Record, row: bytes, at: int) -> None:
    """The next job of its chain; limits and parents are in the body."""
    (length,) = _LENGTH.unpack_from(row, at)
    at += 2 + length
    (length,) = _LENGTH.unpack_from(row, at)
    if length:
        record.next_id = id_text(row[at + 2 : at + 2 + length])


def _add_run(record: Record, marks: int, run: tuple[Any, ...], leased_by: bytes) -> None:
    attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at, keep_last, _ = (
        run
    )
    record.attempt = attempt
    record.failures = failures
    record.losses = losses
    if marks & _HELD:
        (record.stamp,) = STAMP.unpack(stamp)
        record.leased_by = leased_by.decode()
        record.leased_until = int(leased_until)
    if marks & _ACCEPTED_STAMP:
        (record.accepted_stamp,) = STAMP.unpack(accepted_stamp)
    if started_at != NONE:
        record.started_at = int(started_at)
    if finished_at != NONE:
        record.finished_at = int(finished_at)
    if prune_at != NONE:
        record.prune_at = int(prune_at)
    if keep_last != NONE:
        record.keep_last = int(keep_last)


def _add_body(record: Record, body: Body) -> None:
    record.payload = body.payload
    record.max_attempts = body.max_attempts
    record.timeout = body.timeout
    record.backoff = _BACKOFF if body.backoff is None else body.backoff
    record.retention = _RETENTION if body.retention is None else body.retention
    record.dead_retention = _DEAD_RETENTION if body.dead_retention is None else body.dead_retention
    record.tenant = body.tenant
    record.tags = body.tags
    record.meta = body.meta
    record.after = body.after
    record.limits = body.limits
    if body.run_when is not None:
        record.run_when = body.run_when
