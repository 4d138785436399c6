"""Rows that cannot be read: how a store finds one, what it writes in its place, and what it keeps of it.

A row may hold what no version of Perdure writes: somebody edited it, a disk or a restore damaged it, another program wrote
it. The rule for every reader is the same. It reads row by row, sets a bad row aside in the store, and goes on with the rest:

- `flaw_of(record)` names the first field of a decoded record that cannot be used. It costs a few microseconds.
- `mend(values, now)` makes a record of a row that has flaws: each field that can be read is kept, every other gets a
  neutral value. A job that had not ended is dead from then on, and holds nothing. A job that had ended keeps its end, so
  that nobody retries what was done.
- `mark(values, now)` makes the record that a listing shows of it.
- `read_row(values, now)` reads a row and keeps its state; the row has no flaws if no field is named.
- `raw_text(values)` is the row as it was found, for `perdure dead export` and for repair by hand.

- `kept_entry(read, id, values)` reads an entry of what was set aside, which may have been changed as well.
- `log_set_aside` logs it, at most once a minute.

Nothing here reads or writes a store.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Annotated, Any, NamedTuple

import msgspec

from ...core.backoff import Backoff
from ...core.job import FINAL, WAITING, State
from ...core.log_limit import is_new
from ...core.record import (
    HARMLESS_FLAWS,
    POLICY_DEFAULTS,
    UNREADABLE,
    Fault,
    NewJob,
    Record,
    defaults_of,
    unreadable_fields,
)
from ...core.retention import Retention
from ..types import Unreadable
from .limits import StoredLimit

__all__ = [
    "HARMLESS_FLAWS",
    "LARGEST",
    "UNREADABLE",
    "Mended",
    "flaw_of",
    "is_leased",
    "is_unreadable",
    "kept_entry",
    "log_set_aside",
    "mark",
    "mend",
    "raw_text",
    "read_row",
    "reason_for",
    "unreadable_fields",
]

_log = getLogger("perdure")
LARGEST = 1 << 62  # of a counter, instant or duration: adding an instant of our time to it stays within 64 bits
LARGEST_STAMP = (1 << 63) - 1
LONGEST_ID = 200  # characters
LONGEST_NAME = 1 << 16  # characters of an id, task, queue …; far more than any name of ours has

FIELDS = Record.__struct_fields__
_DEFAULTS = defaults_of(Record)
_STAMPS = ("stamp", "accepted_stamp")
_SIGNED = ("priority", "rank", "run_at")
_COUNTERS = ("version", "attempt", "failures", "losses", "waits", "min_version", "keep_last", "max_attempts")
_DURATIONS = ("timeout", "lease")
_INSTANTS = ("started_at", "finished_at", "expires_at", "prune_at", "leased_until")
_FLAGS = ("suspect", "parked", "hidden", "holds_key", "followed")
_NAMES = ("task", "queue", "key", "tenant", "routing_key", "unique_key", "leased_by")
_IDS = ("id", "chain_id", "next_id")
_BUDGET = ("max_attempts", "timeout", "lease")
_SCOPES = (None, "waiting", "active", "any", "window")
_RUN_WHENS = ("succeeded", "finished")
# of a job that is dead because of this: it holds nothing, and stays until somebody deletes it
_FORGOTTEN = ("stamp", "leased_by", "leased_until", "prune_at", "keep_last", "suspect", "parked", "hidden", "holds_key")


class Mended(NamedTuple):
    """A record that stands for an unreadable row, and the fields that were unreadable, in the order of a record."""

    record: Record
    fields: tuple[str, ...]


def log_set_aside(where: str, id: str, fields: Sequence[str]) -> None:
    """Tell the operator, once a minute at most, that a row was set aside."""
    shown = id.encode("utf-8", "backslashreplace").decode() or "without an id"
    line = f"{where} {shown!r}: {', '.join(fields)} cannot be read; the row is set aside, see `perdure doctor`"
    if is_new(line):
        _log.error("%s", line)


def is_leased(record: Record, now: int) -> bool:
    """Whether somebody runs it under a lease that is not over."""
    return record.leased_until is not None and now < record.leased_until <= now + record.lease


def is_unreadable(record: Record) -> bool:
    """Whether this job was set aside because its row could not be read."""
    return bool(unreadable_fields(record.reason))


def reason_for(fields: tuple[str, ...]) -> str:
    """The reason of a job that was set aside."""
    return f"{UNREADABLE}{', '.join(fields)}"


# ---- a decoded record ------------------------------------------------------------------------------
def flaw_of(record: Record) -> str | None:
    """The first field that cannot be used although its type is right; None if there is none. The payload is only looked at
    from outside: whoever runs the job decodes it anyway, and refuses what is no JSON."""
    for field, check in _CHECKS.items():
        value = getattr(record, field)
        if value is not None and not check(value):
            return field
    return next(iter(_contradictions(record.state, record.stamp, record.leased_by, record.leased_until)), None)


def _contradictions(
    state: State, stamp: int | None, leased_by: str | None, leased_until: int | None
) -> tuple[str, ...]:
    """The fields of a hold that is not whole while a job runs, or that is there while it waits."""
    hold = {"stamp": stamp, "leased_by": leased_by, "leased_until": leased_until}
    if state is State.RUNNING:
        return tuple(field for field, value in hold.items() if value is None)
    if state in WAITING:
        return tuple(field for field, value in hold.items() if value is not None)
    return ()


def _is_count(value: int) -> bool:
    return 0 <= value <= LARGEST


def _is_signed(value: int) -> bool:
    return -LARGEST <= value <= LARGEST


def _is_any(value: int) -> bool:
    return -LARGEST_STAMP - 1 <= value <= LARGEST_STAMP


def _is_stamp(value: int) -> bool:
    return 0 <= value <= LARGEST_STAMP


def _is_name(value: str) -> bool:
    return len(value) <= LONGEST_NAME and _is_text(value)


def _is_text(value: str) -> bool:
    """Without lone surrogates, which no store can keep."""
    return value.isascii() or _encodes(value)


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id(value: str) -> bool:
    """A name that a job can be asked for by. It is a UUID, unless somebody made up another."""
    return 0 < len(value) <= LONGEST_ID and value.isprintable()


def _reads(decode: Callable[[str], object]) -> Callable[[str], bool]:
    def reads(text: str) -> bool:
        try:
            decode(text)
        except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
            return False
        return True

    return reads


_any_json = msgspec.json.Decoder().decode
_array = msgspec.json.Decoder(list[Any]).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_parents = msgspec.json.Decoder(list[Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]]).decode
_faults = msgspec.json.Decoder(list[Fault]).decode
_limits = msgspec.json.Decoder(tuple[StoredLimit, ...]).decode

_is_json = _reads(_any_json)
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "id": _is_id,
    "task": _is_name,
    "queue": _is_name,
    "created_at": _is_any,  # nothing is added to it, and pages of a listing end there
    **dict.fromkeys(_SIGNED, _is_signed),
    **dict.fromkeys(_COUNTERS, _is_count),
    **dict.fromkeys(_DURATIONS, _is_count),
    "backoff": _reads(Backoff.parse),
    "retention": _reads(Retention.parse),
    "dead_retention": _reads(Retention.parse),
    **dict.fromkeys(_INSTANTS, _is_signed),
    "leased_until": _is_any,  # a claim adds a lease of any length to the clock
    **dict.fromkeys(_STAMPS, _is_stamp),
    "leased_by": _is_name,
    "result": _is_json,
    "progress": _is_json,
    "errors": _reads(_faults),
    "reason": _is_text,
    "key": _is_name,
    "tenant": _is_name,
    "routing_key": _is_name,
    "tags": _reads(_array),
    "meta": _reads(_object),
    "unique_key": _is_name,
    "unique_scope": _SCOPES.__contains__,
    "chain_id": _is_id,
    "after": _reads(_parents),
    "run_when": _RUN_WHENS.__contains__,
    "next_id": _is_id,
    "limits": _reads(_limits),
}


# ---- a row as the store holds it -------------------------------------------------------------------
def mend(values: Mapping[str, object], now: int) -> Mended:
    """The record that stands for a row with these values, by field of a record: as the store's driver gives them, bytes for
    a text that may not be UTF-8. A field that is missing is unreadable if every job has it."""
    record, fields = read_row(values, now)
    if record.state not in FINAL or "state" in fields:
        record.state, record.finished_at = State.DEAD, now
        for name in _FORGOTTEN:
            setattr(record, name, _DEFAULTS[name])
    record.finished_at = now if record.finished_at is None else record.finished_at
    record.waits = 0
    record.version = min(record.version + 1, LARGEST)
    record.reason = reason_for(fields)
    return Mended(record, fields)


def mark(values: Mapping[str, object], now: int) -> Record:
    """The record of a row for readers: the state stays as it is, and the reason names what cannot be read. A reader does not
    see a job as dead before it was set aside."""
    record, fields = read_row(values, now)
    if fields:
        record.reason = reason_for(fields)
    return record


def read_row(values: Mapping[str, object], now: int) -> Mended:
    """The record of a row, with a neutral value for each field that cannot be read, and the names of those."""
    neutral = _neutral(now)
    read: dict[str, Any] = {}
    flaws: dict[str, None] = {}
    for field in FIELDS:
        try:
            read[field] = _value_of(field, values)
        except (ValueError, TypeError, RecursionError):
            read[field] = neutral[field]
            flaws[field] = None
    if "payload" in flaws and "payload" in unreadable_fields(read["reason"]):  # it was set aside before
        del flaws["payload"]
    flaws.update(
        dict.fromkeys(_contradictions(*(read[name] for name in ("state", "stamp", "leased_by", "leased_until"))))
    )
    return Mended(Record(**read), tuple(field for field in FIELDS if field in flaws))


def _value_of(field: str, values: Mapping[str, object]) -> Any:
    """A field as a record has it. ValueError or TypeError where it cannot be read."""
    if field not in values:
        if field in _DEFAULTS:
            return _DEFAULTS[field]
        raise ValueError("it is missing")
    value = values[field]
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode()
    if value is None:
        if field in _OPTIONAL:
            return None
        raise ValueError("it is missing")
    if field == "state":
        return State(str(value))
    if field in _FLAGS:
        return _flag_of(value)
    if type(value) is not (int if field in _NUMBERS else str):
        raise TypeError(f"it is a {type(value).__name__}")
    check: Callable[[Any], bool] = _is_json if field == "payload" else _CHECKS[field]
    if not check(value):
        raise ValueError("it cannot be used")
    return value


def _flag_of(value: object) -> bool:
    if value not in (0, 1):
        raise ValueError("it is neither true nor false")
    return bool(value)


_NUMBERS = frozenset(("created_at", *_SIGNED, *_COUNTERS, *_DURATIONS, *_INSTANTS, *_STAMPS))
_OPTIONAL = frozenset((*(name for name, value in _DEFAULTS.items() if value is None), "max_attempts", "timeout"))


def _neutral(now: int) -> dict[str, Any]:
    """Neutral values for fields that cannot be read. An empty payload is no JSON: nobody can run it by mistake."""
    return {
        **_DEFAULTS,
        "id": "",
        "task": "",
        "queue": "",
        "state": State.DEAD,
        "priority": 0,
        "rank": now,
        "payload": "",
        "version": 1,
        "attempt": 0,
        "failures": 0,
        "losses": 0,
        **POLICY_DEFAULTS,
        **{name: defaults_of(NewJob)[name] for name in _BUDGET},
        "created_at": now,
        "run_at": now,
    }


def kept_entry(read: Callable[[], Unreadable], id: str, values: Mapping[str, object]) -> Unreadable:
    """An entry of what was set aside, as `read` gives it. An entry that cannot be read itself is given as it was found."""
    try:
        entry = read()
        if _is_json(entry.raw):
            return entry
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, msgspec.MsgspecError):
        pass
    return Unreadable(id, 0, "unreadable", ("value",), raw_text(values))


def raw_text(values: Mapping[str, object]) -> str:
    """A row as it was found, as a JSON object: bytes that are no UTF-8, and numbers that JSON cannot tell, are written as
    {"base64": …} and as texts."""
    return msgspec.json.encode({str(name): _json_value(value) for name, value in values.items()}).decode()


def _json_value(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    if isinstance(value, str):
        return value if _is_text(value) else {"base64": _base64_of(value)}
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -LARGEST_STAMP - 1 <= value <= LARGEST_STAMP else str(value)
    if isinstance(value, Mapping):
        return {str(name): _json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    return repr(value)


def _base64_of(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
