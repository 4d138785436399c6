"""Records made of the answers of scripts. Rows that cannot be read are returned apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec

from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.rules.unreadable import flaw_of

from ..keys import STAMP, id_text, id_texts, unescape
from ..rows import (
    ACCEPTED_STAMP,
    BACKOFF,
    BODY_START,
    DEAD_RETENTION,
    ERRORS,
    FIRST,
    FOLLOWED,
    HEAD,
    HELD,
    HIDDEN,
    HOLDS_KEY,
    LENGTH,
    NONE,
    OUTCOME,
    PARKED,
    PROGRESS,
    RAN,
    REST,
    RETENTION,
    RUN,
    SCOPES,
    STATES,
    SUSPECT,
    UNREADABLE,
    Body,
    Outcome,
    template_of,
)

_TEXTS = OUTCOME | ERRORS | PROGRESS
_body = msgspec.msgpack.Decoder(Body)
_outcome = msgspec.msgpack.Decoder(Outcome)


class Raw(NamedTuple):
    """A job as its keys hold it. None: there is nothing."""

    id: bytes
    row: bytes | None
    body: bytes | None
    outcome: bytes | None = None
    errors: bytes | None = None
    progress: bytes | None = None


class Records(NamedTuple):
    """The jobs in an answer: those that can be read, and the others."""

    records: list[Record]
    unread: list[Raw]


def records_of(told: Sequence[bytes]) -> Records:
    """The jobs in an answer: id, row, body and the texts that the row's marks name (`add_records` in lua/indexes.lua)."""
    unread: list[Raw] = []
    return Records(list(_records(iter(told), unread)), unread)


def claimed_of(told: Sequence[Any]) -> Records:
    """The jobs of a claim: as above, or by row, as lua/fast_claim.lua returns them."""
    if not told or isinstance(told[0], bytes):
        return records_of(told)
    unread: list[Raw] = []
    return Records([record for row, ids, bodies in told for record in _alike(row, ids, bodies, unread)], unread)


def _alike(row: bytes, ids: bytes, bodies: Sequence[bytes | None], unread: list[Raw]) -> Iterator[Record]:
    """Records with the same row. Most bodies are the same behind the payload, and that part is read once."""
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
    if body[:1] != BODY_START:
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


def _records(told: Iterator[bytes], unread: list[Raw]) -> Iterator[Record]:
    """Jobs that were enqueued and claimed together have the same row, which is read once for all of them."""
    last, pattern = b"", None
    for id in told:
        row, body = next(told), next(told)
        marks = int.from_bytes(row[1:3], "little") if len(row) > 2 else 0
        texts = [next(told) if marks & mark else None for mark in (OUTCOME, ERRORS, PROGRESS)] if marks & _TEXTS else ()
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
    state, marks, version = HEAD.unpack_from(row)
    run_ends = HEAD.size
    if marks & RAN:
        run = RUN.unpack_from(row, HEAD.size)
        run_ends += RUN.size + run[-1]
    lease, scope, length = FIRST.unpack_from(row, run_ends)
    at = run_ends + FIRST.size + length
    record = copy(template_of(row[at - length : at]))
    priority, waits, min_version, created_at, run_at, rank, expires_at = REST.unpack_from(row, at)
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
        record.suspect = bool(marks & SUSPECT)
        record.parked = bool(marks & PARKED)
        record.hidden = bool(marks & HIDDEN)
        record.holds_key = bool(marks & HOLDS_KEY)
    if marks & FOLLOWED:
        record.followed = True
    if marks & RAN:
        _add_run(record, marks, run, row[run_ends - run[-1] : run_ends])
    if scope or len(row) > at + REST.size + 4:
        _add_names(record, row, at + REST.size, scope)
    return record


def _state_of(number: int) -> State:
    if not 1 <= number <= len(STATES):
        raise ValueError(f"no state has the number {number}")
    return STATES[number - 1]


def _add_names(record: Record, row: bytes, at: int, scope: int) -> None:
    """The unique key, and what it can be found by."""
    (length,) = LENGTH.unpack_from(row, at)
    at += 2 + length
    if length:
        record.unique_key = row[at - length : at].decode()
    record.unique_scope = SCOPES[scope]
    (length,) = LENGTH.unpack_from(row, at)
    at += 2 + length
    for name in row[at - length : at].split(b"\x00")[:-1]:
        if name[:1] == b"k":
            record.key = unescape(name[1:])
        else:
            record.chain_id = unescape(name[1:])
    if len(row) > at:
        _add_more(record, row, at)


def _add_more(record: Record, row: bytes, at: int) -> None:
    """The next job of its chain; limits and parents are in the body."""
    (length,) = LENGTH.unpack_from(row, at)
    at += 2 + length
    (length,) = LENGTH.unpack_from(row, at)
    if length:
        record.next_id = id_text(row[at + 2 : at + 2 + length])


def _add_run(record: Record, marks: int, run: tuple[Any, ...], leased_by: bytes) -> None:
    attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at, keep_last, _ = (
        run
    )
    record.attempt = attempt
    record.failures = failures
    record.losses = losses
    if marks & HELD:
        (record.stamp,) = STAMP.unpack(stamp)
        record.leased_by = leased_by.decode()
        record.leased_until = int(leased_until)
    if marks & ACCEPTED_STAMP:
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
    record.backoff = BACKOFF if body.backoff is None else body.backoff
    record.retention = RETENTION if body.retention is None else body.retention
    record.dead_retention = DEAD_RETENTION if body.dead_retention is None else body.dead_retention
    record.tenant = body.tenant
    record.tags = body.tags
    record.meta = body.meta
    record.after = body.after
    record.limits = body.limits
    if body.run_when is not None:
        record.run_when = body.run_when
