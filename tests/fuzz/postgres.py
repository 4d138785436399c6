"""The fuzzer's hand on a PostgreSQL schema: every column of every table of ours."""

from __future__ import annotations

from typing import Any
from uuid import UUID
from zlib import crc32

import psycopg

from perdure.storage.postgres.address import address_of

from .harness import Mutation, Refused, Target
from .values import BYTES, NOTHING, NUMBERS, TEXTS

# what was set aside is kept as it was found, and the ledger says which version the schema has
LEFT_ALONE = ("unreadable", "meta")
BY_JOB = ("jobs", "waiting", "holds", "outcomes")
INTEGERS: dict[str, object] = {
    **NOTHING,
    **{name: value for name, value in NUMBERS.items() if isinstance(value, int)},  # a fraction would be rounded
    "largest of 32 bits": (1 << 31) - 1,
    "smallest of 32 bits": -(1 << 31),
    "a word": "nonsense",
}
IDS: dict[str, object] = {"zero": str(UUID(int=0)), "largest": str(UUID(int=(1 << 128) - 1)), "a word": "nonsense"}
FLAGS: dict[str, object] = {"true": True, "false": False}
VALUES: dict[str, dict[str, object]] = {
    "text": {**NOTHING, **TEXTS, **BYTES},
    "uuid": {**NOTHING, **IDS},
    "boolean": {**NOTHING, **FLAGS},
    "bigint": INTEGERS,
    "integer": INTEGERS,
}
COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = ''
ORDER BY c.relname, a.attnum
"""


class PostgresTarget(Target):
    def __init__(self, url: str) -> None:
        self.url = url
        self._schema = address_of(url).schema
        self._raw = psycopg.connect(address_of(url).dsn, autocommit=True)

    def mutations(self) -> list[Mutation]:
        found = []
        for table, column, kind in self._raw.execute(COLUMNS, [f'"{self._schema}"']).fetchall():
            if table not in LEFT_ALONE:
                found += [self._mutation(table, column, kind, *value) for value in VALUES[kind].items()]
        return found

    def close(self) -> None:
        self._raw.close()

    def _mutation(self, table: str, column: str, kind: str, name: str, value: object) -> Mutation:
        where = f'"{self._schema}".{table}'
        place = crc32(f"{table} {column} {name}".encode())
        of_job = table in BY_JOB
        owner = "id" if of_job else "child" if table == "edges" else None

        def write(job: str) -> str | None:
            """A job that has no row in this table lends its turn to one that has."""
            row = self._row(where, place, job if of_job else None, owner)
            if row is None:
                raise Refused("there is no row")
            at, id = row
            given = "convert_from(%s, 'UTF8')" if isinstance(value, bytes) else "%s"
            try:
                self._raw.execute(
                    f"UPDATE {where} SET {column} = {given}::{kind} WHERE (tableoid, ctid) = ({at})",  # type: ignore[arg-type]
                    [value],
                )
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.OperationalError) as refused:
                raise Refused(str(refused)) from None
            return id

        return Mutation(f"{table}.{column}", name, write, of_job=of_job)

    def _row(self, where: str, place: int, job: str | None, owner: str | None) -> tuple[str, str | None] | None:
        """Where a row stands, and the job that it belongs to."""
        asked = f"SELECT tableoid || ', ''' || ctid || '''', {f'{owner}::text' if owner else 'NULL'} FROM {where}"
        rows: list[Any] = []
        if job is not None:
            rows = self._raw.execute(f"{asked} WHERE id = %s", [job]).fetchall()  # type: ignore[arg-type]
        if not rows:
            count = f"(SELECT greatest(1, count(*)) FROM {where})"
            rows = self._raw.execute(f"{asked} OFFSET mod({place}, {count}) LIMIT 1").fetchall()  # type: ignore[arg-type]
        return rows[0] if rows else None
