"""Inspects a PostgreSQL store for rows that cannot be read: jobs a few at a time, and the small tables.

Rows that can be made again (gates, starts, accounts, keys that nobody occupies) are deleted when they cannot be read.
Settings of a queue become the defaults. Any other row is kept in `unreadable` and deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.core.job import State
from perdure.storage.rules.unreadable import LARGEST

from ..connection.server import Connection
from ..edges.lost_edges import LostEdges
from ..limits.fast_limits import is_as_read
from ..limits.limits import Limits
from ..queries import load
from ..reading.records import array, digest
from ..writing.apply import Effects
from ..writing.state_rows import TABLES as MOVING
from .unreadable import Aside, doubtful_among

FIRST = None  # before every id
AT_ONCE = 500
SWEPT = 10_000  # jobs that are looked at for whether anybody can find them, in one inspection
SMALL = 5_000  # rows of a table beside the jobs that are looked at in one inspection

Check = Callable[[Any, int], bool]  # a value that is not NULL, and the time


# ---- the tables beside the jobs --------------------------------------------------------------------
class Table(NamedTuple):
    """A table, its key, the checks of its columns, and values in place of those that cannot be read (else the row goes).
    `whole` checks a row as a whole, and names the columns that contradict others."""

    name: str
    key: tuple[str, ...]
    checks: dict[str, Check]
    neutral: dict[str, Any] = {}
    kept: bool = True  # what cannot be read is kept; else it can be made again
    whole: Callable[[dict[str, Any]], list[str]] | None = None


def _any(value: Any, now: int) -> bool:
    return True


def _json_object(value: str, now: int) -> bool:
    return _reads(lambda: msgspec.json.decode(value, type=dict[str, Any]))


def _weights(value: str, now: int) -> bool:
    return _reads(lambda: msgspec.json.decode(value, type=dict[str, float]))


def _limits(value: str, now: int) -> bool:
    return _reads(lambda: is_as_read(value, None, None))


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        return False
    return True


def _number(value: int, now: int) -> bool:
    return -LARGEST <= value <= LARGEST


def _count(value: int, now: int) -> bool:
    return 0 <= value <= LARGEST


def _soon(value: int, now: int) -> bool:
    """An instant that our code can have written."""
    return -LARGEST <= value <= now + (1 << 53)


def _other_limits(row: dict[str, Any]) -> list[str]:
    """Columns of a gate that its limits do not say."""
    if row["gate"] != digest(row["limits"]):
        return ["gate"]
    return [] if is_as_read(row["limits"], row["most"], row["key"]) else ["most"]


TABLES = (
    Table(
        "queues",
        ("name",),
        {
            "max_depth": lambda value, now: 1 <= value < 1 << 31,
            "on_full": lambda value, now: value in ("reject", "drop", "wait"),
            "drop_below": lambda value, now: -(1 << 31) <= value < 1 << 31,
            "weights": _weights,
        },
        {"max_depth": None, "on_full": "reject", "drop_below": None, "weights": None},
    ),
    Table("workers", ("id",), {"started_at": _count, "seen_at": _soon, "running": _count, "about": _json_object}),
    Table("kv", ("kind", "name"), {"version": _count, "due_at": _soon}, {"version": 1, "due_at": 0}),
    Table("kept_keys", ("key", "starts"), {"starts": _number, "ends": _number}),
    Table(
        "limit_gates",
        ("gate", "queue", "task", "route"),
        {"limits": _limits, "gate": _any, "key": _any, "most": _count, "closed_at": _soon, "opens_at": _soon},
        kept=False,
        whole=_other_limits,
    ),
    Table(
        "limit_starts",
        ("key", "at"),
        {"at": _soon, "until": _soon, "times": lambda value, now: 1 <= value < 1 << 31},
        kept=False,
    ),
    Table("fair_accounts", ("queue", "priority", "tenant"), {"rank": _soon}, kept=False),
)


class Inspection:
    """The statements of one schema, and how far inspections have come."""

    def __init__(self, schema: str, aside: Aside, limits: Limits) -> None:
        self._schema = schema
        self._aside = aside
        self._limits = limits
        self._lost_edges = LostEdges(schema)
        self._sql = load("unreadable", schema)
        self._strays = {table: load("unreadable", schema, table=table)["remove_strays"] for table in MOVING}
        self._swept: dict[str, str | None] = dict.fromkeys(("silent_waiting", "silent_jobs"), FIRST)
        self._behind: dict[str, str | None] = dict.fromkeys(("jobs", *MOVING), FIRST)

    async def go_on(self, connection: Connection, limit: int, now: int | None, effects: Effects) -> int:
        """Inspect the next jobs and moving rows, and the small tables; gives how many rows were set aside or put right."""
        asked = {"behind": self._behind["jobs"], "limit": limit}
        rows = await (await connection.execute(self._sql["next_rows"], asked)).fetchall()
        self._behind["jobs"] = rows[-1][0] if len(rows) == limit else FIRST
        found = await self._inspect_jobs(connection, rows, now, effects)
        for table in MOVING:
            gone, self._behind[table] = await self._remove_strays(connection, table, self._behind[table], limit, now)
            found += gone
        found += await self._sweep(connection, now, effects)
        return found + await self.inspect_tables(connection, now)

    async def _sweep(self, connection: Connection, now: int | None, effects: Effects) -> int:
        """Look through many more jobs, for those that no claim, reaper or promotion can find. The server looks, and only
        names them; gives how many were set aside or put right."""
        silent: set[str] = set()
        for look in self._swept:
            asked = {"behind": self._swept[look], "limit": SWEPT}
            *named, (last, _) = await (await connection.execute(self._sql[look], asked)).fetchall()
            self._swept[look] = last or FIRST
            silent.update([id for id, _ in named][:AT_ONCE])
        if not silent:
            return 0
        ids = {"ids": array(sorted(silent))}
        due = await connection.execute(self._sql["make_due"], ids)
        rows = await (await connection.execute(self._sql["rows"], ids)).fetchall()
        return max(0, due.rowcount) + await self._inspect_jobs(connection, rows, now, effects)

    async def inspect_live(
        self, connection: Connection, behind: str | None, limit: int, now: int | None, effects: Effects
    ) -> tuple[int, str | None]:
        """Inspect the next jobs that wait or run; gives how many were set aside or put right, and the last of them, `FIRST`
        at the end."""
        asked = {"behind": behind, "limit": limit}
        ids = [id for (id,) in await (await connection.execute(self._sql["live_ids"], asked)).fetchall()]
        rows = await (await connection.execute(self._sql["rows"], {"ids": array(ids)})).fetchall()
        found = await self._inspect_jobs(connection, rows, now, effects)
        for table in ("waiting", "holds"):
            found += (await self._remove_strays(connection, table, behind, limit, now))[0]
        return found, ids[-1] if len(ids) == limit else FIRST

    async def inspect_next(
        self, connection: Connection, behind: str | None, limit: int, now: int | None, effects: Effects
    ) -> tuple[int, str | None]:
        """The same with the next of all jobs."""
        asked = {"behind": behind, "limit": limit}
        rows = await (await connection.execute(self._sql["next_rows"], asked)).fetchall()
        found = await self._inspect_jobs(connection, rows, now, effects)
        found += (await self._remove_strays(connection, "outcomes", behind, limit, now))[0]
        return found, rows[-1][0] if len(rows) == limit else FIRST

    async def _inspect_jobs(
        self, connection: Connection, rows: Sequence[Sequence[Any]], now: int | None, effects: Effects
    ) -> int:
        doubtful, readable = doubtful_among(rows)
        found = 0
        if doubtful:
            found += (await self._aside.sort_out(connection, doubtful, now, effects, unless_leased=True))[1]
        blocked = [record for record in readable if record.state is State.BLOCKED]
        return found + await self._lost_edges.mend(connection, blocked, effects)

    async def _remove_strays(
        self, connection: Connection, table: str, behind: str | None, limit: int, now: int | None
    ) -> tuple[int, str | None]:
        """Remove moving rows that have no job."""
        async with connection.transaction():
            cursor = await connection.execute(self._strays[table], {"behind": behind, "limit": limit})
            *strays, (last, _) = await cursor.fetchall()
            found = [(id, table, ["id"], msgspec.json.decode(raw)) for id, raw in strays]
            await self._aside.keep(connection, found, now)
        return len(found), last or FIRST

    # -- small tables --------------------------------------------------------------------------------
    async def inspect_tables(self, connection: Connection, now: int | None) -> int:
        at = await self._aside.now(connection, now)
        found = 0
        for table in TABLES:
            found += await self._inspect(connection, table, at, now)
        cursor = await connection.execute(self._sql["free_keys"], {"limit": SMALL})
        return found + max(0, cursor.rowcount)

    async def _inspect(self, connection: Connection, table: Table, at: int, now: int | None) -> int:
        columns = list(dict.fromkeys((*table.key, *table.checks)))
        asked = ", ".join(f"{name}::text" if name in _IDS else name for name in columns)
        where = f'"{self._schema}".{table.name}'
        cursor = await connection.execute(f"SELECT ctid::text, {asked} FROM {where} LIMIT {SMALL}")
        bad = []
        for place, *values in await cursor.fetchall():
            row = dict(zip(columns, values, strict=True))
            if flaws := _flaws(table, row, at):
                bad.append((place, row, flaws))
        if not bad:
            return 0
        async with connection.transaction():
            if table.kept:
                named = [(" ".join(str(row[name]) for name in table.key), row, flaws) for _, row, flaws in bad]
                rows = [(name, table.name, flaws, row) for name, row, flaws in named]
                await self._aside.keep(connection, rows, now)
            for place, row, flaws in bad:
                await self._put_right(connection, table, where, place, row, flaws)
            if table.name == "limit_gates":
                await self._limits.mend(connection, now)  # which makes the gates again
        return len(bad)

    async def _put_right(
        self, connection: Connection, table: Table, where: str, place: str, row: dict[str, Any], flaws: Sequence[str]
    ) -> None:
        same = " AND ".join(f"{name}::text = %(key_{name})s::text" for name in table.key)
        values = {"place": place, **{f"key_{name}": str(row[name]) for name in table.key}}
        if set(flaws) <= table.neutral.keys():
            said = ", ".join(f"{name} = {_literal(table.neutral[name])}" for name in flaws)
            statement = f"UPDATE {where} SET {said}"
        else:
            statement = f"DELETE FROM {where}"
        await connection.execute(f"{statement} WHERE ctid = %(place)s::tid AND {same}", values)


_IDS = ("gate", "key", "job")


def _literal(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _flaws(table: Table, row: dict[str, Any], now: int) -> list[str]:
    flaws = [name for name, check in table.checks.items() if row[name] is not None and not check(row[name], now)]
    return flaws or (table.whole(row) if table.whole is not None else [])
