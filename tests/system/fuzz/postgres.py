"""The fuzzer's hand on a PostgreSQL schema: every column of every table of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID
from zlib import crc32

import psycopg

from perdure.core.record import NewJob
from perdure.storage.contract import Storage
from perdure.storage.postgres.address import address_of

from .target import Missing, Mutation, Refused, Target
from .values import BYTES, NOTHING, NUMBERS, TEXTS

BY_JOB = ("jobs", "waiting", "holds", "outcomes")
OWNERS = {  # the job that a row belongs to
    **dict.fromkeys(BY_JOB, "id"),
    "edges": "child",
    "kv": "job",
    "unresolved": "coalesce(child, parent)",
    "log": "job",
    "kept_keys": "job",
    "held_keys": "job",
}
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
TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
ORDER BY relname
"""
COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = ''
ORDER BY c.relname, a.attnum
"""


class PostgresTarget(Target):
    at_once = 250
    short_lived = frozenset(
        (
            "holds",
            "unresolved",
            "limit_notices",
            "limit_slots",
            "limit_free_keys",
            "limit_gates",
            "limit_starts",
            "workers",
        )
    )
    left_alone = {"meta": "test_ledger.py spoils it: without a readable version nobody opens the schema"}

    def __init__(self, url: str) -> None:
        self.url = url
        self._schema = f'"{address_of(url).schema}"'
        self._raw = psycopg.connect(address_of(url).dsn, autocommit=True)

    def rows(self) -> dict[str, int]:
        tables = [table for (table,) in self._asked(TABLES, [self._schema])]
        return {table: self._asked(f"SELECT count(*) FROM {self._schema}.{table}")[0][0] for table in tables}

    def mutations(self) -> list[Mutation]:
        found = []
        for table, column, kind in self._asked(COLUMNS, [self._schema]):
            if table in self.left_alone:
                continue
            kinds: list[str | None] = [None]
            if (table, column) == ("kv", "text"):  # each kind is read by other code
                kinds = [name for (name,) in self._asked(f"SELECT DISTINCT kind FROM {self._schema}.kv ORDER BY 1")]
            found += [
                self._mutation(table, column, kind, *value, kv_kind)
                for value in VALUES[kind].items()
                for kv_kind in kinds
            ]
        return found

    async def seed(self, store: Storage, followers: Sequence[NewJob], parents: Sequence[str]) -> None:
        """A caller's own transaction leaves edges to be resolved."""
        with self._raw.transaction():
            for statement, text in store.caller_statements(followers).inserts:
                self._raw.execute(statement.replace("?", "%s").encode(), (text,))
        # what a claimer hears that has no time to open the gates
        self._raw.execute(
            f"INSERT INTO {self._schema}.limit_free_keys SELECT DISTINCT closed_by FROM {self._schema}.limit_gates "  # type: ignore[arg-type]
            "WHERE closed_by IS NOT NULL AND opens_at IS NULL LIMIT 5 ON CONFLICT DO NOTHING"
        )
        if not self._asked(f"SELECT count(*) FROM {self._schema}.unreadable")[0][0]:
            self._raw.execute(
                f"INSERT INTO {self._schema}.unreadable (id, at, place, fields, raw) "  # type: ignore[arg-type]
                "VALUES ('a row', 1, 'seed', '[]', '{}')"
            )

    def close(self) -> None:
        self._raw.close()

    # -- below ---------------------------------------------------------------------------------------
    def _asked(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        return self._raw.execute(statement, values or None).fetchall()  # type: ignore[arg-type]

    def _mutation(self, table: str, column: str, kind: str, name: str, value: object, kv_kind: str | None) -> Mutation:
        """`kv_kind`: only rows of this kind."""
        where = f"{self._schema}.{table}"
        place = crc32(f"{table} {column} {name}".encode())
        of_job = table in BY_JOB

        def write(job: str) -> str | None:
            at, owner = self._row(table, place, job, kv_kind)
            given = "convert_from(%s, 'UTF8')" if isinstance(value, bytes) else "%s"
            statement = f"UPDATE {where} SET {column} = {given}::{kind} WHERE (tableoid, ctid) = ({at})"
            try:
                self._raw.execute(statement, [value])  # type: ignore[arg-type]
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.OperationalError) as refused:
                raise Refused(str(refused)) from None
            return owner

        return Mutation(f"{table}.{column}{f' of {kv_kind}' if kv_kind else ''}", name, write, of_job=of_job)

    def _row(self, table: str, place: int, job: str, kv_kind: str | None) -> tuple[str, str | None]:
        """Where a row stands, and the job that it belongs to."""
        owner = f"({OWNERS[table]})::text" if table in OWNERS else "NULL"
        asked = f"SELECT tableoid || ', ''' || ctid || '''', {owner} FROM {self._schema}.{table}"
        if table in BY_JOB:
            rows = self._asked(f"{asked} WHERE id = %s", [job])
        else:
            of_kind = "" if kv_kind is None else f" WHERE kind = '{kv_kind}'"
            count = f"(SELECT greatest(1, count(*)) FROM {self._schema}.{table}{of_kind})"
            rows = self._asked(f"{asked}{of_kind} OFFSET mod({place}, {count}) LIMIT 1")
        if not rows:
            raise Missing
        found: tuple[str, str | None] = rows[0]
        return found
