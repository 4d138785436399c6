"""The fuzzer's hand on a SQLite file: every column of every table of ours."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from zlib import crc32

from .harness import Mutation, Refused, Target
from .values import BYTES, NOTHING, NUMBERS, TEXTS

# what was set aside is kept as it was found, and the ledger says which version the schema has
LEFT_ALONE = ("perdure_unreadable", "perdure_meta")
BY_JOB = ("perdure_jobs", "perdure_bodies")


class SqliteTarget(Target):
    def __init__(self, path: Path, scheme: str = "sqlite") -> None:
        self.path = path
        self.url = f"{scheme}:///{path}"
        self._raw: sqlite3.Connection | None = None

    def mutations(self) -> list[Mutation]:
        columns = self._connection().execute(
            "SELECT t.name, c.name, c.type, c.pk FROM pragma_table_list AS t, pragma_table_info(t.name) AS c "
            f"WHERE t.type = 'table' AND t.name LIKE 'perdure_%' AND t.name NOT IN {LEFT_ALONE}"
        )
        keys: dict[str, list[str]] = {}
        found = []
        for table, column, kind, key in columns.fetchall():
            keys.setdefault(table, []).extend([column] if key else [])
            numbers = {**NOTHING, **NUMBERS, "a word": "nonsense"}
            texts = {**NOTHING, **TEXTS, **BYTES, "one": 1}
            for name, value in (texts if kind == "TEXT" else numbers).items():
                found.append(self._mutation(table, keys[table], column, name, value))
        return found

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def _connection(self) -> sqlite3.Connection:
        if self._raw is None:
            self._raw = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        return self._raw

    def _mutation(self, table: str, keys: list[str], column: str, name: str, value: object) -> Mutation:
        of_job = table in BY_JOB
        place = crc32(f"{table} {column} {name}".encode())

        def write(job: str) -> str | None:
            given = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
            if of_job:
                where = "number = (SELECT number FROM perdure_jobs WHERE id = ?)"
            else:
                key = ", ".join(keys)
                rows = f"(SELECT max(1, count(*)) FROM {table})"
                where = f"({key}) = (SELECT {key} FROM {table} LIMIT 1 OFFSET {place} % {rows})"
            child = None
            if table == "perdure_edges":  # an edge belongs to the job that waits
                child = self._connection().execute(f"SELECT CAST(child AS BLOB) FROM {table} WHERE {where}").fetchone()
            try:
                self._connection().execute(
                    f"UPDATE {table} SET {column} = {given} WHERE {where}", [value, job] if of_job else [value]
                )
            except (sqlite3.IntegrityError, sqlite3.OperationalError, OverflowError) as refused:
                raise Refused(str(refused)) from None
            if child is not None:
                return str(child[0], "utf-8", "replace")
            return job if of_job else None

        return Mutation(f"{table.removeprefix('perdure_')}.{column}", name, write, of_job=of_job)
