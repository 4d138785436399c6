"""The fuzzer's hand on a SQLite file: every column of every table of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw

from perdure.core.record import NewJob
from perdure.storage.contract import Storage

from .target import Missing, Mutation, Refused, Target
from .values import BYTES, NOTHING, NUMBERS, TEXTS

BY_JOB = ("jobs", "bodies")
OWNERS = {"edges": "child", "kv": "job", "unresolved": "job", "log": "job", "keys": "job"}  # columns with a job
COLUMN_NUMBERS = {**NOTHING, **NUMBERS, "a word": "nonsense"}
COLUMN_TEXTS = {**NOTHING, **TEXTS, **BYTES, "one": 1}
REFUSALS = (sqlite3.IntegrityError, sqlite3.OperationalError, OverflowError, apsw.Error)


class SqliteTarget(Target):
    short_lived = frozenset(("unresolved", "gates", "full_limits", "starts", "workers"))
    left_alone = {"meta": "test_ledger.py spoils it: without a readable version nobody opens the file"}

    def __init__(self, path: Path, scheme: str = "sqlite") -> None:
        self.path = path
        self.url = f"{scheme}:///{path}"
        self._apsw = scheme == "sqlite+apsw"
        self._raw: Any = None

    def rows(self) -> dict[str, int]:
        return {table: self._value(f"SELECT count(*) FROM perdure_{table}") for table in self._tables()}

    def mutations(self) -> list[Mutation]:
        found = []
        for table in self._tables():
            if table in self.left_alone:
                continue
            columns = self._connection().execute(f"SELECT name, type, pk FROM pragma_table_info('perdure_{table}')")
            described = columns.fetchall()
            keys = [column for column, _, key in described if key]
            for column, kind, _ in described:
                for name, value in (COLUMN_TEXTS if kind == "TEXT" else COLUMN_NUMBERS).items():
                    if (table, column) == ("kv", "text"):  # each kind is read by other code
                        found += [self._mutation(table, keys, column, name, value, kind) for kind in self._kinds()]
                    else:
                        found.append(self._mutation(table, keys, column, name, value))
        return found

    def _kinds(self) -> list[str]:
        return [name for (name,) in self._connection().execute("SELECT DISTINCT kind FROM perdure_kv ORDER BY kind")]

    async def seed(self, store: Storage, followers: Sequence[NewJob], parents: Sequence[str]) -> None:
        """A caller's own transaction leaves edges to be resolved."""
        raw = self._connection()
        raw.execute("BEGIN IMMEDIATE")
        for statement, text in store.caller_statements(followers).inserts:
            raw.execute(statement, (text,))
        raw.execute("COMMIT")
        if not self._value("SELECT count(*) FROM perdure_unreadable"):
            raw.execute(
                "INSERT INTO perdure_unreadable (id, at, table_name, fields, raw) VALUES ('a row', 1, 'seed', '[]', '{}')"
            )

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    # -- below ---------------------------------------------------------------------------------------
    def _connection(self) -> Any:
        """A connection of the same library as the store's: two copies of SQLite in one process undo each other's locks."""
        if self._raw is None and self._apsw:
            self._raw = apsw.Connection(str(self.path))
            self._raw.set_busy_timeout(30_000)
        elif self._raw is None:
            self._raw = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        return self._raw

    def _tables(self) -> list[str]:
        names = self._connection().execute(
            "SELECT name FROM pragma_table_list WHERE type = 'table' AND name LIKE 'perdure@_%' ESCAPE '@' ORDER BY name"
        )
        return [name.removeprefix("perdure_") for (name,) in names.fetchall()]

    def _value(self, statement: str) -> int:
        value: int = self._connection().execute(statement).fetchone()[0]
        return value

    def _mutation(
        self, table: str, keys: list[str], column: str, name: str, value: object, kind: str | None = None
    ) -> Mutation:
        """`kind`: only rows of this kind."""
        of_job = table in BY_JOB
        place = crc32(f"{table} {column} {name}".encode())

        def write(job: str) -> str | None:
            where, given = self._row(table, keys, place, job, kind)
            found = self._connection().execute(f"SELECT 1 FROM perdure_{table} WHERE {where}", given).fetchone()
            if found is None:
                raise Missing
            owner = job if of_job else self._owner(table, where, given)
            bad = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
            try:
                self._connection().execute(
                    f"UPDATE perdure_{table} SET {column} = {bad} WHERE {where}", [value, *given]
                )
            except REFUSALS as refused:
                raise Refused(str(refused)) from None
            return owner

        return Mutation(f"{table}.{column}{f' of {kind}' if kind else ''}", name, write, of_job=of_job)

    def _row(self, table: str, keys: list[str], place: int, job: str, kind: str | None) -> tuple[str, list[object]]:
        """The condition for the row to spoil: that of a job, or any."""
        if table in BY_JOB:
            return "number = (SELECT number FROM perdure_jobs WHERE id = ?)", [job]
        key = ", ".join(keys)
        rows = f"perdure_{table}" if kind is None else f"perdure_{table} WHERE kind = '{kind}'"
        place %= max(1, self._value(f"SELECT count(*) FROM {rows}"))
        return f"({key}) = (SELECT {key} FROM {rows} LIMIT 1 OFFSET {place})", []

    def _owner(self, table: str, where: str, given: list[object]) -> str | None:
        if table not in OWNERS:
            return None
        asked = f"SELECT CAST({OWNERS[table]} AS BLOB) FROM perdure_{table} WHERE {where}"
        owner = self._connection().execute(asked, given).fetchone()[0]
        return None if owner is None else str(owner, "utf-8", "replace")
