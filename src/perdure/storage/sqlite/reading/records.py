"""Converts between rows and texts: many values go in as one VALUES list, records come out as one JSON text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from perdure.core.record import ROW_VERSION, Record
from perdure.storage.rules.unreadable import flaw_of

from ..connection.driver import Connection

FIELDS = Record.__struct_fields__
POLICY = ("max_attempts", "timeout", "backoff", "retention", "dead_retention")  # in a table of their own
# what a job was enqueued with, and what changes seldom: in a row of its own, which most changes leave as it is
BODY = tuple(
    """
    payload policy min_version run_when waits key tenant tags meta unique_scope chain_id after next_id progress errors
    """.split()  # noqa: SIM905
)
COLUMNS = tuple(field for field in FIELDS if field not in (*POLICY, *BODY))  # of a job's own row
# a waiting job that has not expired, and that no newer version wrote for itself alone
MAY_RUN = f"min_version <= {ROW_VERSION} AND (expires_at IS NULL OR expires_at > :now OR started_at IS NOT NULL)"
WHOLE = "perdure_jobs AS job CROSS JOIN perdure_bodies AS body USING (number)"


def column_of(field: str) -> str:
    """A field as a column of `WHOLE`."""
    return f"body.{field}" if field in BODY else f"job.{field}"


def value_of(field: str, column: Callable[[str], str] = str) -> str:
    """A field of a record as an expression over the columns of `WHOLE`, named by `column`."""
    if field in POLICY:
        return f"(SELECT {field} FROM perdure_policies WHERE perdure_policies.number = {column('policy')})"
    return column(field)


def position_of(state: str, *, parked: bool, suspect: bool) -> tuple[int | None, str | None]:
    """The columns `in_lane` and `index_state` of a job: what the indexes of waiting jobs are built on."""
    if state != "ready":
        return None, state if state in _APART else None
    if suspect:
        return None, "suspect"
    return None if parked else 1, None


_APART = ("scheduled", "blocked", "dead")


RECORD = ", ".join(value_of(field) for field in FIELDS)


class _Row(Record, array_like=True, kw_only=True):
    """A record as a JSON array, which the decoder makes in one step."""


_decoder = msgspec.json.Decoder(list[_Row], strict=False)
_lists = msgspec.json.Decoder(list[Any])


def literal(value: object) -> str:
    """A default of a field as SQL."""
    return f"'{value}'" if isinstance(value, str) else str(int(value))  # type: ignore[call-overload]


class Flawed(Exception):
    """A text holds a record that cannot be read. The caller reads the rows one by one."""


def records_of(text: bytes) -> list[Record]:
    """The records in a JSON array of arrays in the order of FIELDS. Flawed, if one of them cannot be read."""
    try:
        rows = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Flawed(str(error)) from None
    for row in rows:
        row.__class__ = Record  # type: ignore[assignment]  # a record like those of every store
        if flaw_of(row) is not None:
            raise Flawed(flaw_of(row))
    return rows  # type: ignore[return-value]


def lists_of(text: str) -> list[Any]:
    return _lists.decode(text)


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


class Many:
    """A statement with a VALUES list of any length, in as few and as few different statements as possible.

    The template has {values} where the list goes, before every other parameter. With `padded`, a list is filled up with rows
    of NULLs, which the statement must ignore: one statement instead of several smaller ones.
    """

    def __init__(
        self, template: str, width: int, sizes: Sequence[int] = (500, 100, 20, 4, 1), *, padded: bool = False
    ) -> None:
        row = f"({','.join('?' * width)})"
        self._width = width
        self._padded = padded
        self._statements = [(size, template.replace("{values}", ",".join([row] * size))) for size in sizes]

    def run(self, connection: Connection, rows: Sequence[Iterable[Any]], *shared: Any) -> int:
        """Run it for all rows; returns how many rows of the table it changed."""
        return sum(connection.change(statement, parameters) for statement, parameters in self._parts(rows, shared))

    def rows(self, connection: Connection, values: Sequence[Iterable[Any]], *shared: Any) -> list[tuple[Any, ...]]:
        """Run it for all values; returns the rows that it found."""
        parts = self._parts(values, shared)
        return [row for statement, parameters in parts for row in connection.rows(statement, parameters)]

    def _parts(self, rows: Sequence[Iterable[Any]], shared: tuple[Any, ...]) -> Iterator[tuple[str, list[Any]]]:
        begin, left = 0, len(rows)
        while left > 0:
            size, statement = self._fitting(left)
            parameters = [*chain.from_iterable(rows[begin : begin + size])]
            if size > left:
                parameters += [None] * (self._width * (size - left))
            parameters += shared
            yield statement, parameters
            begin, left = begin + size, left - size

    def _fitting(self, left: int) -> tuple[int, str]:
        if not self._padded:
            return next(each for each in self._statements if each[0] <= left)
        enough = [each for each in self._statements if each[0] >= left]
        return enough[-1] if enough else self._statements[0]
