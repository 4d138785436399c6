"""The schema of a PostgreSQL store: its migrations, and the table that records them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg

from perdure.errors import StoreError
from perdure.storage.migrations import Migration, migrations_in, version_in

from .address import Address
from .connection.errors import explain, explain_connecting
from .queries import load

TABLES = tuple(
    """
    jobs waiting holds outcomes held_keys kept_keys log queues workers edges unresolved limit_gates limit_notices limit_slots
    limit_starts limit_free_keys fair_accounts kv unreadable
    """.split()  # noqa: SIM905
)
OUTBOX_TABLES = ("perdure_outbox",)
META = {False: "meta", True: "perdure_outbox_meta"}  # of a store, and of an outbox, which may share the schema


def load_migrations(schema: str, *, outbox: bool = False) -> list[Migration]:
    """The migrations, as SQL for this schema that can be run by hand too: each begins with the schema that it needs and
    ends with a note that it was run."""
    found = migrations_in(files(__package__) / ("outbox_migrations" if outbox else "migrations"))
    return [Migration(each.number, each.name, _whole(each, schema, META[outbox])) for each in found]


def _whole(migration: Migration, schema: str, meta: str) -> str:
    sql = load("schema", schema, bare=schema, meta=meta, number=str(migration.number))
    parts = [migration.text.replace("{schema}", f'"{schema}"').strip(), f"{sql['note_version']};"]
    return "\n\n".join([f"{sql['create_schema']};", *parts] if migration.number == 1 else parts)


class PostgresLedger:
    """The ledger in a table of the schema: of a store, or of an outbox."""

    made_of = "tables"

    def __init__(self, address: Address, *, outbox: bool = False) -> None:
        self._address = address
        self._meta = META[outbox]
        self._tables = [*(OUTBOX_TABLES if outbox else TABLES), self._meta]
        self._sql = load("schema", address.schema, meta=self._meta)
        try:
            self._connection = psycopg.connect(address.dsn, autocommit=True, **address.defaults)
        except psycopg.Error as error:
            raise explain_connecting(error, str(address)) from error

    def __str__(self) -> str:
        return str(self._address)

    def version(self) -> int:
        try:
            return self._version()
        except psycopg.Error as error:
            raise explain(error, str(self)) from error

    def run(self, migration: Migration) -> bool:
        try:
            with self._connection.transaction():
                self._rows("turn", key=self._address.schema)
                if self._version() >= migration.number:
                    return False
                self._connection.execute(migration.text)
                return True
        except psycopg.Error as error:
            raise explain(error, str(self)) from error

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int:
        ours = {name for (name,) in self._rows("our_tables", schema=self._address.schema, tables=self._tables)}
        if self._meta in ours and (rows := self._rows("version")):
            return version_in(rows[0][0], self)
        if ours:
            raise StoreError(
                f"{self} has tables that are named as Perdure's but were not made by it ({', '.join(sorted(ours))}): "
                "name another schema (?schema=…)"
            )
        return 0

    def _rows(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(self._sql[name], values)
        return cursor.fetchall() if cursor.description is not None else []
