"""Reads rows of jobs column by column, as bytes, which works whatever they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.core.record import Record
from perdure.storage.rules.records import is_parked
from perdure.storage.rules.unreadable import mark

from ..connection.driver import Connection
from ..queries import load
from .records import BODY, COLUMNS, POLICY, Flawed, json_text, lists_of, position_of, records_of

_POSITION = ("in_lane", "index_state")
_COLUMNS = (
    *(("job", name) for name in (*COLUMNS, *_POSITION)),
    *(("body", name) for name in BODY),
    *(("kept", name) for name in POLICY),
)
_NAMES = tuple(name for _, name in _COLUMNS)


def as_bytes(column: str) -> str:
    """A column as an expression: a text as its bytes, anything else as it is."""
    return f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"


_ROWS = load("unreadable", columns=", ".join(as_bytes(f"{table}.{name}") for table, name in _COLUMNS))["rows"]


class Row(NamedTuple):
    """A job's row as it is stored, column by column."""

    number: int
    body: int | None
    values: dict[str, Any]

    def is_in_position(self, record: Record) -> bool:
        """Whether the columns that indexes are built on agree with the state of the job."""
        index_state = self.values["index_state"]
        if isinstance(index_state, bytes):
            index_state = index_state.decode("utf-8", "replace")
        parked = is_parked(record.state, record.limits)
        position = position_of(record.state.value, parked=parked, suspect=record.suspect)
        return (*position, parked) == (self.values["in_lane"], index_state, record.parked)


def rows_of(connection: Connection, numbers: Sequence[int]) -> list[Row]:
    """These rows, in this order."""
    found = connection.rows(_ROWS, (json_text(list(numbers)),))
    return [Row(number, body, dict(zip(_NAMES, values, strict=True))) for number, body, *values in found]


def records_for_readers(connection: Connection, numbers: Sequence[int], now: int) -> list[Record]:
    """These jobs for a reader, marked where they cannot be read. A row without a valid id is left out: no reader could ask
    for it."""
    records = [mark(row.values, now) for row in rows_of(connection, numbers)]
    return [record for record in records if record.id]


def records_or_numbers(read: Callable[[str], Any], records: str, numbers: str) -> tuple[list[Record], list[int]]:
    """The records that a statement returns, if all of them can be read. Else the numbers of its rows, by the same statement
    with `number` in place of a record: the caller reads those one by one."""
    try:
        return records_of(read(records)), []
    except Flawed:
        return [], [number for (number,) in lists_of(read(numbers))]
