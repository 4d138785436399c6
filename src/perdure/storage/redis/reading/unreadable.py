"""Sets jobs that cannot be read aside as dead letters, marks them in listings, and keeps what was found.

The scripts check each row before they use it (`flaw_in` in lua/constants.lua). They skip a row that they cannot use, and add
its id to `unread`. Bodies and texts are read here. Whoever meets a job that cannot be read calls `set_aside`: the job is
read again as bytes, what stands for it is made by `storage.rules.unreadable.mend`, and a script writes that if the row is
still the same. What was found is kept in `unreadable` until the job is removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct, error
from time import time
from typing import Any, NamedTuple

import msgspec

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Unreadable
from perdure.storage.rules.unreadable import Mended, kept_entry, log_set_aside, mark, mend, raw_text

from ..connection.client import RedisClient
from ..keys import STAMP, TYPES, id_bytes, id_text, parts_of, unescape
from ..rows import (
    ACCEPTED_STAMP,
    BODY_DEFAULTS,
    BODY_START,
    FIRST,
    HEAD,
    HELD,
    LENGTH,
    MARKS,
    NONE,
    RAN,
    REST,
    RUN,
    SCOPES,
    STATES,
    UNREADABLE,
    Body,
    Outcome,
    body_of,
    outcome_of,
    row_of,
)
from ..script_args import Argument
from .records import Raw, Records

LATEST = 6_700_000_000_000_000  # the year 2182: further instants have no exact place among doubles
AT_ONCE = 100  # jobs that are set aside by one script
LAST_VERSION = 4_294_967_000  # see lua/constants.lua
_UNREAD = b"\xff"  # no text: stands for a value that makes no sense
_AT = Struct("<d")
_JOB, _VALUE = b"j", b"v"  # how fields of `unreadable` begin
_unreadable = msgspec.json.Decoder(Unreadable)


# ---- what a job has, field by field ----------------------------------------------------------------
def values_of(raw: Raw, flaw: str | None = None) -> dict[str, object]:
    """The fields of a record, as far as the bytes tell them: those that do not are missing. `flaw`: the field of the row
    that the scripts could not use."""
    values: dict[str, object] = {"id": id_text(raw.id) if len(raw.id) == 16 else _UNREAD}
    for read, given in (
        (_read_row, raw.row),
        (_read_body, raw.body),
        (_read_outcome, raw.outcome),
    ):
        try:
            values.update(read(given) if given or (given is not None and read is not _read_outcome) else ())
        except UNREADABLE:
            if read is _read_outcome:
                values["result"] = _UNREAD
    for name, text in (("errors", raw.errors), ("progress", raw.progress)):
        if text:
            values[name] = text
    if flaw is not None and flaw != "row":
        values[flaw] = _UNREAD
    return values


def _read_row(row: bytes) -> Iterator[tuple[str, object]]:
    """The fields of a row, up to where it breaks off."""
    try:
        yield from _read_parts(row)
    except error:
        return


def _read_parts(row: bytes) -> Iterator[tuple[str, object]]:
    state, marks, version = HEAD.unpack_from(row)
    yield "state", STATES[state - 1].value if 1 <= state <= len(STATES) else state
    yield "version", version
    yield from ((name, bool(marks & mark)) for name, mark in MARKS.items())
    at = HEAD.size
    yield from (("attempt", 0), ("failures", 0), ("losses", 0))
    if marks & RAN:
        *run, length = RUN.unpack_from(row, at)
        at += RUN.size + length
        yield from _read_run(run, marks, row[at - length : at])
    lease, scope, length = FIRST.unpack_from(row, at)
    at += FIRST.size + length
    yield "lease", _whole(lease)
    yield "unique_scope", SCOPES[scope] if scope < len(SCOPES) else _UNREAD
    yield from _read_lane(row[at - length : at])
    priority, waits, min_version, created_at, run_at, rank, expires_at = REST.unpack_from(row, at)
    at += REST.size
    yield from (("priority", priority), ("waits", waits), ("min_version", min_version))
    yield from (("created_at", _whole(created_at)), ("run_at", _whole(run_at)), ("rank", _whole(rank)))
    yield "expires_at", _or_none(expires_at)
    yield from _read_names(row, at)


def _read_run(run: Sequence[Any], marks: int, leased_by: bytes) -> Iterator[tuple[str, object]]:
    attempt, failures, losses, stamp, accepted_stamp, leased_until, started_at, finished_at, prune_at, keep_last = run
    yield from (("attempt", attempt), ("failures", failures), ("losses", losses))
    if marks & HELD:
        yield from (("stamp", STAMP.unpack(stamp)[0]), ("leased_by", leased_by))
        yield "leased_until", _or_none(leased_until)
    if marks & ACCEPTED_STAMP:
        yield "accepted_stamp", STAMP.unpack(accepted_stamp)[0]
    yield from (("started_at", _or_none(started_at)), ("finished_at", _or_none(finished_at)))
    yield from (("prune_at", _or_none(prune_at)), ("keep_last", _or_none(keep_last)))


def _read_lane(lane: bytes) -> Iterator[tuple[str, object]]:
    try:
        queue, task, routing = parts_of(lane)
    except ValueError:
        yield from (("queue", _UNREAD), ("task", _UNREAD))
        return
    yield from (("queue", queue), ("task", task), ("routing_key", routing))


def _read_names(row: bytes, at: int) -> Iterator[tuple[str, object]]:
    (length,) = LENGTH.unpack_from(row, at)
    at += 2 + length
    if length:
        yield "unique_key", row[at - length : at]
    (length,) = LENGTH.unpack_from(row, at)
    at += 2 + length
    for name in row[at - length : at].split(b"\x00")[:-1]:
        yield "key" if name[:1] == b"k" else "chain_id", _text(name[1:])
    if len(row) > at:
        (length,) = LENGTH.unpack_from(row, at)
        at += 2 + length
        (length,) = LENGTH.unpack_from(row, at)
        if length:
            yield "next_id", id_text(row[at + 2 : at + 18]) if length == 16 else _UNREAD


def _read_body(body: bytes) -> dict[str, object]:
    """What a body tells. Each of its texts is looked at alone, since one of them may not be UTF-8."""
    try:
        read = msgspec.msgpack.decode(body, type=Body)
        values: dict[str, object] = {name: getattr(read, name) for name in Body.__struct_fields__}
    except (msgspec.MsgspecError, ValueError):
        parts = list(_parts_of(body))
        values = dict(zip(Body.__struct_fields__, parts, strict=False))
    for name, usual in BODY_DEFAULTS.items():
        if values.get(name, usual) is None:
            values[name] = usual
    return values


def _parts_of(body: bytes) -> Iterator[object]:
    """The parts of a MessagePack array, up to the first that cannot be told from the next. Texts are bytes."""
    if body[:1] != BODY_START:
        return
    at = 1
    while at < len(body):
        part = _part_at(body, at)
        if part is None:
            return
        value, at = part
        yield value


def _part_at(body: bytes, at: int) -> tuple[object, int] | None:
    """A text (as bytes), None or a number, and where the next part begins."""
    head = body[at]
    if head & 0xE0 == 0xA0:
        return _cut(body, at + 1, head & 0x1F)
    for code, size in ((0xD9, 1), (0xDA, 2), (0xDB, 4)):
        if head == code:
            return _cut(body, at + 1 + size, int.from_bytes(body[at + 1 : at + 1 + size]))
    length = 1 if head <= 0x7F or head >= 0xE0 else _LENGTHS.get(head)
    if length is None or at + length > len(body):
        return None
    return msgspec.msgpack.decode(body[at : at + length]), at + length


# of None, booleans and numbers, with their first byte
_LENGTHS = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9} | {0xCC + n: 1 + 2**n for n in range(4)}
_LENGTHS |= {0xD0 + n: 1 + 2**n for n in range(4)}


def _cut(body: bytes, begin: int, length: int) -> tuple[bytes, int] | None:
    return (body[begin : begin + length], begin + length) if begin + length <= len(body) else None


def _read_outcome(outcome: bytes) -> dict[str, object]:
    said = msgspec.msgpack.decode(outcome, type=Outcome)
    return {"result": said.result, "reason": said.reason}


def _text(name: bytes) -> object:
    try:
        return unescape(name)
    except UnicodeDecodeError:
        return name


def _whole(number: float) -> object:
    """A whole number as such; what is none is left as it is, which no field takes."""
    return int(number) if number == number and abs(number) < 1e300 and number == int(number) else number


def _or_none(number: float) -> object:
    return None if number == NONE else _whole(number)


# ---- in place of them ------------------------------------------------------------------------------
def mend_raw(raw: Raw, now: int, flaw: str | None = None) -> Mended:
    """The record that replaces a job, and the fields that could not be read."""
    record, fields = mend(values_of(raw, flaw), now)
    if record.version >= LAST_VERSION:
        record.version = 1
    record.run_at, record.rank = min(record.run_at, LATEST), min(record.rank, LATEST)
    return Mended(record, fields)


def instant_now() -> int:
    """This machine's clock: good enough for what is only shown."""
    return int(time() * SECOND)


def readable_or_marked(
    told: Records, now: int, births: Mapping[bytes, bytes] | None = None, *, newest_first: bool = True
) -> list[Record]:
    """The jobs for a reader, in the order of a listing. One that cannot be read is marked.
    `births`: where such jobs stand in a listing, since a page ends with that."""
    if not told.unread:
        return told.records
    found = list(told.records)
    for raw in told.unread:
        if len(raw.id) == 16:
            record = mark(values_of(raw), now)
            if births is not None and raw.id in births:
                record.created_at = int(float(births[raw.id]))
            found.append(record)
    return sorted(found, key=lambda record: (record.created_at, record.id), reverse=newest_first)


def not_running(unread: Sequence[Raw], now: int) -> list[Raw]:
    """Without those that run under a lease that is not over: they are left to their holders."""
    return [raw for raw in unread if not _is_leased(values_of(raw), now)]


def _is_leased(values: Mapping[str, Any], now: int) -> bool:
    until, lease = values.get("leased_until"), values.get("lease")
    if values.get("state") != State.RUNNING or not isinstance(until, int) or not isinstance(lease, int):
        return False
    return now < until <= now + lease


class Aside(NamedTuple):
    """A job that is set aside: what the scripts write, and what is kept."""

    raw: Raw
    mend_raw: Mended
    kept: Unreadable


async def set_aside(
    client: RedisClient, given: Any, now: Callable[[], Awaitable[int]], origin: bytes, ids: Iterable[bytes]
) -> int:
    """Set these jobs aside, as far as they cannot be read indeed. `given`: the time for the scripts. Gives how many were."""
    wanted = list(dict.fromkeys(ids))
    number = 0
    for begin in range(0, len(wanted), AT_ONCE):
        instant = await now()
        told = await client.run("raw", wanted[begin : begin + AT_ONCE], repeat=True)
        found = [
            _describe(id, told[6 * at : 6 * at + 6], instant) for at, id in enumerate(wanted[begin : begin + AT_ONCE])
        ]
        arguments: list[Argument] = [given, origin]
        for id, aside in zip(wanted[begin : begin + AT_ONCE], found, strict=True):
            arguments += _arguments_of(id, aside)
        done = await client.run("set_aside", arguments, repeat=True)
        for aside, answer in zip(found, done, strict=True):
            if aside is not None and answer:
                number += 1
                log_set_aside("job", aside.kept.id, aside.kept.fields)
    return number


def _describe(id: bytes, told: Sequence[Any], now: int) -> Aside | None:
    """What to write for a job; None if there is none, or if it can be read."""
    flaw, *texts = told
    raw = Raw(id, *texts)
    if raw.row is None and raw.body is None:
        return None
    made = mend_raw(raw, now, None if flaw is None else flaw.decode())
    if not made.fields:
        return None
    values = {**values_of(raw), **{name: text for name, text in raw._asdict().items() if text is not None}}
    values["id"] = name = id_text(id) if len(id) == 16 else id.hex()
    return Aside(raw, made, Unreadable(name, now, "jobs", made.fields, raw_text(values)))


def _arguments_of(id: bytes, aside: Aside | None) -> list[Argument]:
    """The arguments of lua/set_aside.lua for a job."""
    if aside is None:
        return [id, "", "", "", "", "", "", ""]
    record, kept = aside.mend_raw.record, msgspec.json.encode(aside.kept)
    seen = b"" if aside.raw.row is None else aside.raw.row
    moved: list[Argument] = [id, seen, "", "", "", "", "", kept]
    if len(id) != 16:
        return moved
    try:
        row, body = row_of(record, has_log=True), body_of(record)
    except (*UNREADABLE, TypeError):  # what stands for it cannot be written either
        return moved
    return [
        id,
        seen,
        row,
        body,
        outcome_of(record.result, record.reason),
        "" if record.errors is None else record.errors.encode(),
        "" if record.progress is None else record.progress.encode(),
        kept,
    ]


async def move_values(client: RedisClient, name: str, values: Sequence[tuple[bytes, bytes]]) -> None:
    """Set values of a hash aside that belong to no job."""
    number = list(TYPES).index(name) + 1
    await client.run("move_values", ["", name, number, *(part for value in values for part in value)], repeat=True)
    for field, _ in values:
        log_set_aside(name, field.decode("utf-8", "backslashreplace"), ("value",))


# ---- what was set aside ----------------------------------------------------------------------------
async def list_unreadable(client: RedisClient, ids: Sequence[str] | None, limit: int) -> list[Unreadable]:
    """What was set aside, the oldest first."""
    if ids is not None:
        known = [_JOB + raw for id in ids if (raw := id_bytes(id)) is not None]
        texts = await client.command("HMGET", client.keys["unreadable"], *known) if known else []
        found = [_parse_kept(field, text) for field, text in zip(known, texts, strict=True) if text is not None]
    else:
        told = await client.command("HGETALL", client.keys["unreadable"])
        found = [_parse_kept(field, text) for field, text in zip(told[::2], told[1::2], strict=True)]
    return sorted(found, key=lambda each: (each.at, each.id))[:limit]


def _parse_kept(field: bytes, text: bytes) -> Unreadable:
    """One that was kept; of what somebody else wrote there, as much as can be told."""

    def read() -> Unreadable:
        if field[:1] == _JOB:
            return _unreadable.decode(text)
        if len(text) < _AT.size:
            raise ValueError("it is too short")
        (at,) = _AT.unpack_from(text)
        where, _, name = field[1:].partition(b"\x00")
        told = {"field": name, "value": text[_AT.size :]}
        return Unreadable(name.decode("utf-8", "backslashreplace"), int(at), where.decode(), ("value",), raw_text(told))

    return kept_entry(read, field.hex(), {"field": field, "value": text})
