"""The schema of an outbox: its migrations, and where they are noted. It may share a schema of PostgreSQL with a store."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import psycopg

from holdfast.storage.migrate import Migration, migrations_in

from .address import Address
from .faults import explained
from .queries import load


def migrations(schema: str) -> list[Migration]:
    """The migrations, as SQL for this schema."""
    found = migrations_in(files(__package__) / "outbox_migrations")
    return [Migration(each.number, each.name, each.text.replace("{schema}", f'"{schema}"')) for each in found]


class OutboxLedger:
    """The ledger in the table `holdfast_outbox_meta` of the schema."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sql = load("outbox_schema", address.schema, bare=address.schema)
        try:
            self._connection = psycopg.connect(address.dsn, autocommit=True, **address.defaults)
        except psycopg.Error as error:
            raise explained(error, str(address)) from error

    def __str__(self) -> str:
        return f"the outbox {self._address}"

    def version(self) -> int:
        try:
            return self._version()
        except psycopg.Error as error:
            raise explained(error, str(self)) from error

    def run(self, migration: Migration) -> bool:
        try:
            with self._connection.transaction():
                self._rows("turn")
                if self._version() >= migration.number:
                    return False
                self._connection.execute(self._sql["create_schema"])
                self._connection.execute(migration.text)
                self._connection.execute(self._sql["create_meta"])
                self._rows("note_version", version=migration.number)
                return True
        except psycopg.Error as error:
            raise explained(error, str(self)) from error

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int:
        if not self._rows("meta_is_there")[0][0]:
            return 0
        rows = self._rows("version")
        return int(rows[0][0]) if rows else 0

    def _rows(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(self._sql[name], values or None)
        return cursor.fetchall() if cursor.description is not None else []
