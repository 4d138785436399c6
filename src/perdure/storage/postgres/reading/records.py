"""Turns rows into records, and values into the parameters that are quickest to send.

A column of many values is sent as one text: ids and numbers as an array in PostgreSQL's own notation, JSON texts joined by a
character that JSON cannot hold. PostgreSQL's texts cannot hold NUL; where a text may contain one, a mark is sent instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from time import time_ns
from typing import Any
from uuid import UUID

import msgspec

from perdure.core.record import Record
from perdure.errors import StoreError
from perdure.storage.rules.fast_path import expand_records
from perdure.storage.rules.limits import keys_of
from perdure.storage.rules.unreadable import LARGEST, flaw_of, mark

COLUMNS = Record.__struct_fields__
JOINT, NOTHING = "\x1e", "\x1f"
NUL, MARK = "\x00", "\ue000\uf8ff"
NARROW = ("version", "attempt", "failures", "losses")  # columns of 32 bits that our statements add to
LOOKS = 50  # for rows of jobs that move meanwhile; after that they are not where their state says
MOST = (1 << 31) - 1_000_000  # in one of those: there is room for many attempts more


_ID = COLUMNS.index("id")
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)
_RANK, _PAYLOAD = (COLUMNS.index(name) for name in ("rank", "payload"))
_NO_ID = str(UUID(int=0))
_ORDER = attrgetter("rank", "id")


class _Row(Record, array_like=True, kw_only=True):
    """A record as a tuple; only so that it is made in one step."""


class Flawed(StoreError):
    """Rows of these jobs cannot be read."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"rows of jobs cannot be read: {', '.join(ids[:5])}")
        self.ids = ids


def records_of(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """The records in rows whose first columns are those of a record. Flawed names the jobs that cannot be read."""
    records, flawed = readable_of(rows)
    if flawed:
        raise Flawed(flawed)
    return records


def readable_of(rows: Sequence[Sequence[Any]]) -> tuple[list[Record], list[str]]:
    """The records in rows that can be read, and the ids of the others."""
    try:
        found = _convert(rows)
    except _UNREADABLE:
        return _one_by_one(rows)
    bad = {record.id for record in found if is_flawed(record)}
    return ([record for record in found if record.id not in bad], list(bad)) if bad else (found, [])


def _one_by_one(rows: Sequence[Sequence[Any]]) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    flawed: list[str] = []
    for row in rows:
        try:
            (record,) = _convert([row])
        except _UNREADABLE:
            flawed.append(row[_ID])
            continue
        if is_flawed(record):
            flawed.append(record.id)
        else:
            records.append(record)
    return records, flawed


def shown_of(rows: Sequence[Sequence[Any]], now: int | None) -> list[Record]:
    """The records in rows for a reader: one that cannot be read is marked."""
    at = time_ns() // 1000 if now is None else now  # only in place of instants that cannot be read
    records, flawed = readable_of(rows)
    if not flawed:
        return records
    readable = {record.id: record for record in records}
    return [readable[row[_ID]] if row[_ID] in readable else _marked(row, at) for row in rows]


def _marked(row: Sequence[Any], now: int) -> Record:
    record = mark(values_of(row), now)
    _unmark(record)
    return record


def values_of(row: Sequence[Any]) -> dict[str, Any]:
    """The fields of a record as a row has them. What fills its column is as bad as what does not fit it: the next attempt
    would make every statement fail that counts it."""
    values = dict(zip(COLUMNS, row, strict=False))
    values |= {name: LARGEST + 1 for name in NARROW if isinstance(values[name], int) and values[name] > MOST}
    return values


def is_flawed(record: Record) -> bool:
    return (
        flaw_of(record) is not None
        or record.version > MOST
        or record.attempt > MOST
        or record.failures > MOST
        or record.losses > MOST
    )


def _convert(rows: Sequence[Sequence[Any]]) -> list[Record]:
    found = msgspec.convert(rows, list[_Row], strict=False)
    for record in found:
        record.__class__ = Record  # type: ignore[assignment]  # a record like those of every store
        if record.key is not None or record.reason is not None or record.unique_key is not None:
            _unmark(record)
    return found  # type: ignore[return-value]


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
    return f"{{{','.join(_quote(value) for value in values)}}}"


def _quote(text: str) -> str:
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


def claimed_of(rows: Sequence[Sequence[Any]], doubtful: list[str]) -> list[Record]:
    """The records of claimed jobs, the best first.

    Most claimed jobs were never tried before and have only default values. All that differs is the id, the time of
    creation and the payload: a tenth of a record. A claim returns the jobs that are alike in one row, with what they have
    in common once (`grouped_columns` in queries/claim.sql).

    The ids of those that cannot be read, or may be such, are added to
    `doubtful`.
    """
    alike = [row for row in rows if row[_RANK] is None]
    records: list[Record] = []
    if len(alike) < len(rows):
        records, flawed = readable_of([row for row in rows if row[_RANK] is not None])
        doubtful += flawed
    for row in alike:
        records += _made(row, doubtful)
    records.sort(key=_ORDER)
    if len({record.priority for record in records}) > 1:
        records.sort(key=_urgency)  # which leaves those of one priority in their order
    return records


def _made(row: Sequence[Any], doubtful: list[str]) -> list[Record]:
    given = list(row)
    given[_ID], given[_PAYLOAD], given[_RANK] = _NO_ID, "", 0
    shorts = row[_ID].split(JOINT)
    try:
        (one,) = records_of([given])
        return expand_records(one, shorts, row[_PAYLOAD].split(JOINT))
    except (Flawed, ValueError):  # a payload that holds a joint makes too many
        doubtful += [short.partition(" ")[2] for short in shorts]
        return []


def _urgency(record: Record) -> int:
    return -record.priority
