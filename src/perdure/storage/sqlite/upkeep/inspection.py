"""Checks rows of a SQLite file: jobs a few at a time, and the small tables.

Rows that can be made again (gates, used-up limits, accounts, starts) are removed when they cannot be read. Settings of a
queue become the defaults. Any other row is moved to perdure_unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import randrange
from typing import Any, NamedTuple

import msgspec

from perdure.storage.rules.unreadable import LARGEST, LONGEST_ID, is_leased, read_row

from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from ..reading.raw_rows import Row, as_bytes, rows_of
from ..reading.records import json_text, lists_of
from .unreadable import set_aside, sort_out

SMALL = 5_000  # rows of a small table that one inspection reads
AT_ONCE = 500
FIRST, LAST = -(1 << 63), (1 << 63) - 1  # before every number, and the last that there is
SWEPT = 50_000  # jobs whose indexed columns one inspection compares with their state
FEW = 10_000  # jobs that are always inspected from the first one on

_sql = load("unreadable")


# ---- jobs ------------------------------------------------------------------------------------------
def flawed_after(connection: Connection, number: int, limit: int, now: int, *, live: bool) -> tuple[list[int], int]:
    """Of the next jobs after a row number: those that are to be sorted out, and the last number that was read, `FIRST` at
    the end. `live`: only jobs that have not ended."""
    numbers = lists_of(connection.value(_sql["live_numbers" if live else "next_numbers"], (number, limit)))
    found = [row.number for row in rows_of(connection, numbers) if _is_flawed(row, now)]
    return found, numbers[-1] if len(numbers) == limit else FIRST


class Swept(NamedTuple):
    """Jobs that no index shows where their state says, bodies without a job, and the number after which to continue,
    `FIRST` at the end."""

    misplaced: list[int]
    strays: list[int]
    last: int


def sweep(connection: Connection, number: int, swept: int = SWEPT) -> Swept:
    """Check the next jobs after a row number for indexed columns that contradict their state. It returns at most `AT_ONCE`;
    the next sweep finds the rest."""
    ((found, last, count),) = connection.rows(_sql["misplaced"], (number, swept))
    last = last if count == swept else FIRST
    strays = connection.rows(_sql["stray_bodies"], (number, LAST if last == FIRST else last, AT_ONCE))
    return Swept(lists_of(found)[:AT_ONCE], [stray for (stray,) in strays], last)


def random_start(connection: Connection) -> int:
    """A row number after which to begin. A process may end before it has inspected a large store: if all began with the
    first job, none would ever reach the last."""
    newest = connection.value(_sql["newest_number"])
    return randrange(newest) if newest > FEW else FIRST


def _is_flawed(row: Row, now: int) -> bool:
    record, flaws = read_row(row.values, now)
    if flaws:
        return "id" in flaws or not is_leased(record, now)
    # a parked or blocked job may have lost its gate or its edges
    return not row.is_in_position(record) or record.parked or record.state == "blocked"


def inspect_jobs(work: Work, numbers: Sequence[int], now: int) -> int:
    """Set aside or put right these rows; returns how many."""
    return sort_out(work, numbers, now, unless_leased=True)[1]


def remove_stray_bodies(work: Work, candidates: Sequence[int], now: int) -> int:
    """Remove those of these bodies that have no job: a new job may get their number, and must not run with their payload."""
    numbers = [
        number for each in candidates for (number,) in work.connection.rows(_sql["stray_bodies"], (each - 1, each, 1))
    ]
    if numbers:
        set_aside(
            work, [(str(number), "bodies", ["number"], _body(work.connection, number)) for number in numbers], now
        )
        work.connection.change(_sql["remove_bodies"], (json_text(numbers),))
    return len(numbers)


def _body(connection: Connection, number: int) -> dict[str, Any]:
    names = ("payload", "policy", "after", "key", "tags", "meta")
    found = connection.rows(f"SELECT {', '.join(map(as_bytes, names))} FROM perdure_bodies WHERE number = ?", (number,))
    return dict(zip(names, found[0], strict=True))


# ---- the small tables -------------------------------------------------------------------------
Check = Callable[[Any, int], bool]  # a value that is not NULL, and the time


class Table(NamedTuple):
    """A table, its key, the checks of its columns, and values in place of those that cannot be read (None: the row goes)."""

    name: str
    key: tuple[str, ...]
    checks: dict[str, Check]
    neutral: dict[str, Any] = {}
    kept: bool = True  # what cannot be read is kept; else it can be made again


def _text(value: Any, now: int) -> bool:
    return isinstance(value, bytes) and _reads(value.decode)


def _id(value: Any, now: int) -> bool:
    return _text(value, now) and 0 < len(value) <= 4 * LONGEST_ID


def _json(value: Any, now: int) -> bool:
    return isinstance(value, bytes) and _reads(lambda: msgspec.json.decode(value))


def _json_object(value: Any, now: int) -> bool:
    return isinstance(value, bytes) and _reads(lambda: msgspec.json.decode(value, type=dict[str, Any]))


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return True


def _number(value: Any, now: int) -> bool:
    return isinstance(value, int) and -LARGEST <= value <= LARGEST


def _count(value: Any, now: int) -> bool:
    return isinstance(value, int) and 0 <= value <= LARGEST


def _flag(value: Any, now: int) -> bool:
    return value in (0, 1)


def _soon(value: Any, now: int) -> bool:
    """An instant that our code can have written."""
    return isinstance(value, int) and -LARGEST <= value <= now + (1 << 53)


def _one_of(*words: str) -> Check:
    return lambda value, now: isinstance(value, bytes) and value.decode("utf-8", "replace") in words


TABLES = (
    Table(
        "queues",
        ("name",),
        {
            "name": _text,
            "paused": _flag,
            "max_depth": lambda value, now: isinstance(value, int) and 1 <= value < 1 << 31,
            "on_full": _one_of("reject", "drop", "wait"),
            "drop_below": lambda value, now: isinstance(value, int) and -(1 << 31) <= value < 1 << 31,
            "fair": _flag,
            "weights": _json_object,
        },
        {"paused": 0, "max_depth": None, "on_full": "reject", "drop_below": None, "fair": 0, "weights": None},
    ),
    Table(
        "workers", ("id",), {"id": _text, "started_at": _count, "seen_at": _soon, "running": _count, "about": _json_object}
    ),
    Table(
        "kv",
        ("kind", "name"),
        {"kind": _text, "name": _text, "text": _text, "version": _count, "due_at": _soon, "job": _text},
        {"version": 1, "due_at": 0},
    ),
    Table("keys", ("key", "starts"), {"key": _text, "starts": _number, "ends": _number, "job": _id}),
    Table(
        "edges",
        ("parent", "child"),
        {"parent": _id, "child": _id, "run_when": _one_of("", "succeeded", "finished"), "open": _flag},
    ),
    Table("unresolved", ("number",), {"job": _id, "admit": _flag}),
    Table(
        "gates",
        ("number",),
        {
            "limits": _text,
            "queue": _text,
            "task": _text,
            "routing_key": _text,
            "priority": _number,
            "rank": _soon,
            "head": _id,
            "closed_by": _text,
        },
        kept=False,
    ),
    Table("full_limits", ("limits",), {"limits": _json, "closed_at": _soon, "opens_at": _soon}, kept=False),
    Table("starts", ("key",), {"key": _text, "starts": _json, "ends": _soon}, kept=False),
    Table(
        "accounts", ("queue", "priority", "payer"), {"queue": _text, "priority": _number, "payer": _text, "rank": _soon},
        kept=False,
    ),
)  # fmt: skip


def inspect_tables(work: Work, now: int) -> int:
    """Set aside or put right the rows of the small tables; returns how many."""
    found = sum(_inspect(work, table, now) for table in TABLES)
    found += work.connection.change(_sql["idle_closers"])
    found += work.connection.change(_sql["resume_orphans"])
    return found + work.connection.change(_sql["reopen_orphans"])


def any_flawed(connection: Connection, now: int) -> bool:
    """Whether `inspect_tables` would find something."""
    if any(_flaws(table, row, now) for table in TABLES for row in _rows(connection, table)):
        return True
    return bool(connection.value(_sql["any_idle"]))


def _rows(connection: Connection, table: Table) -> list[dict[str, Any]]:
    columns = list(dict.fromkeys((*table.key, *table.checks)))
    asked = ", ".join(map(as_bytes, columns))
    return [
        dict(zip(columns, values, strict=True))
        for values in connection.rows(f"SELECT {asked} FROM perdure_{table.name} LIMIT {SMALL}")
    ]


def _flaws(table: Table, row: dict[str, Any], now: int) -> list[str]:
    return [name for name, check in table.checks.items() if row[name] is not None and not check(row[name], now)]


def _inspect(work: Work, table: Table, now: int) -> int:
    bad = [(row, flaws) for row in _rows(work.connection, table) if (flaws := _flaws(table, row, now))]
    if table.kept:
        set_aside(work, [(_name_of(table, row), table.name, flaws, row) for row, flaws in bad], now)
    for row, flaws in bad:
        where = " AND ".join(f"{as_bytes(name)} IS ?" for name in table.key)
        key = [row[name] for name in table.key]
        if set(flaws) <= table.neutral.keys():
            values = ", ".join(f"{name} = ?" for name in flaws)
            given = [table.neutral[name] for name in flaws]
            work.connection.change(f"UPDATE perdure_{table.name} SET {values} WHERE {where}", (*given, *key))
        else:
            work.connection.change(f"DELETE FROM perdure_{table.name} WHERE {where}", key)
    return len(bad)


def _name_of(table: Table, row: dict[str, Any]) -> str:
    key = [row[name] for name in table.key]
    return " ".join(
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value) for value in key
    )
