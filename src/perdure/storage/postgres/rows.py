"""Rows as records, and values as the parameters that are quickest to send.

A column of many values travels as one text: ids and numbers as an array in PostgreSQL's own notation, JSON texts joined by
a character that JSON cannot hold. PostgreSQL's texts hold no NUL; where one may come from outside, a mark travels in its
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from perdure.clock import SYSTEM
from perdure.job import Record
from perdure.storage.limiting import keys_of
from perdure.storage.unreadable import flaw_of, log_left_out, mark, read_row

COLUMNS = Record.__struct_fields__
JOINT, NOTHING = "\x1e", "\x1f"
NUL, MARK = "\x00", "\ue000\uf8ff"


class _Row(Record, array_like=True, kw_only=True):
    """A record as a tuple; only so that it is made in one step."""


def records_of(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """The records in rows whose first columns are those of a record. One that cannot be read is left out and logged."""
    try:
        return _converted(rows)
    except _UNREADABLE:
        return [record for row in rows for record in _readable(row)]


def shown_of(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """The same for a reader: one that cannot be read is marked."""
    try:
        return _converted(rows)
    except _UNREADABLE:
        return [mark(_values(row), SYSTEM.micros()) for row in rows]


def _converted(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """All of them at once; an error, if one of them cannot be read."""
    found = msgspec.convert(rows, list[_Row], strict=False)
    for record in found:
        record.__class__ = Record  # type: ignore[assignment]  # a record like those of every store
        if record.key is not None or record.reason is not None or record.unique_key is not None:
            _unmark(record)
        if flaw_of(record) is not None:
            raise ValueError(flaw_of(record))
    return found  # type: ignore[return-value]


def _readable(row: Sequence[Any]) -> list[Record]:
    try:
        return _converted([row])
    except _UNREADABLE:
        values = _values(row)
        log_left_out(str(values["id"]), read_row(values, 0).fields)
        return []


def _values(row: Sequence[Any]) -> dict[str, object]:
    """A row by the fields of a record, as texts and numbers."""
    values: dict[str, object] = {}
    for name, value in zip(COLUMNS, row, strict=False):
        values[name] = str(value) if isinstance(value, UUID) else unmarked(value) if isinstance(value, str) else value
    return values


_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def _unmark(record: Record) -> None:
    record.key = unmarked(record.key)
    record.unique_key = unmarked(record.unique_key)
    record.reason = unmarked(record.reason)


def marked(text: str | None) -> str | None:
    return text if text is None or NUL not in text else text.replace(NUL, MARK)


def unmarked(text: str | None) -> str | None:
    return text if text is None or MARK not in text else text.replace(MARK, NUL)


def route_of(routing_key: str | None) -> str:
    """A routing key as a lane has it: never NULL."""
    return "" if routing_key is None else f"={routing_key}"


@lru_cache(maxsize=4096)
def digest(text: str) -> str:
    """A short name for a text of any length: as a uuid, which every index can hold."""
    return str(UUID(sha256(text.encode()).hexdigest()[:32]))


@lru_cache(maxsize=4096)
def slot_of(limits: str | None) -> str | None:
    """The key that a hold itself is counted under: the only one of its job. Several are kept in rows of their own."""
    keys = keys_of([limits])
    return digest(keys[0]) if len(keys) == 1 else None


def array(values: Iterable[str]) -> str:
    """Ids as an array."""
    return f"{{{','.join(values)}}}"


@lru_cache(maxsize=4096)
def names(values: tuple[str, ...]) -> str:
    """Names as an array: those that a worker asks for again and again."""
    return f"{{{','.join(_quoted(value) for value in values)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def numbers(values: Iterable[int | None]) -> str:
    """Whole numbers as an array."""
    return f"{{{str(list(values))[1:-1]}}}".replace("None", "NULL")


def numbers_or_none(values: Sequence[int | None]) -> str | None:
    """None when there is not one number: a column that nobody fills is not sent."""
    return None if values.count(None) == len(values) else numbers(values)


def joined(texts: Sequence[str | None]) -> str | None:
    """JSON texts in one; None when there is not one."""
    if texts.count(None) == len(texts):
        return None
    return JOINT.join(NOTHING if text is None else text for text in texts)


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
