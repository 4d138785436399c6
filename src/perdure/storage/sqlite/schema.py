"""The schema of a SQLite file: its migrations, and the ledger that stores its version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files

from perdure.errors import StoreError
from perdure.storage.migrations import Migration, migrations_in

from .connection.busy import Retry
from .connection.database_file import DatabaseFile
from .connection.driver import Connection
from .queries import load


def load_migrations() -> list[Migration]:
    return migrations_in(files(__package__) / "migrations")


def load_outbox_migrations() -> list[Migration]:
    return migrations_in(files(__package__) / "outbox_migrations")


class SqliteLedger:
    """The ledger of a store in the table perdure_meta; that of an outbox, which may share the file, in one of its own."""

    made_of = "tables"

    def __init__(self, connection: Connection, file: DatabaseFile, retry: Retry, *, outbox: bool = False) -> None:
        self._connection = connection
        self._file = file
        self._retry = retry
        self._meta = "perdure_outbox_meta" if outbox else "perdure_meta"
        self._sql = load("schema", meta=self._meta)
        self._tables = self._sql["outbox_tables" if outbox else "our_tables"]

    def __str__(self) -> str:
        return str(self._file)

    def version(self) -> int:
        version: int = self._retry(self._version)
        return version

    def run(self, migration: Migration) -> bool:
        self._retry(self._connection.rows, "BEGIN IMMEDIATE")
        try:
            if self._version() >= migration.number:
                return False
            for statement in _statements(migration.text):
                self._connection.rows(statement)
            self._connection.rows(self._sql["meta_table"])
            self._connection.rows(self._sql["note_version"], (str(migration.number),))
            self._retry(self._connection.rows, "COMMIT")
            return True
        finally:
            if self._connection.in_transaction():
                self._connection.rows("ROLLBACK")

    def _version(self) -> int:
        ours = {name for (name,) in self._connection.rows(self._tables)}
        if self._meta in ours:
            rows = self._connection.rows(self._sql["version"])
            if rows and rows[0][0].isdecimal():
                return int(rows[0][0])
        if ours:
            raise StoreError(
                f"{self._file} has tables that are named as Perdure's but were not made by it "
                f"({', '.join(sorted(ours))}): rename them, or use another file"
            )
        return 0


def _statements(text: str) -> Iterator[str]:
    """The single statements of a script."""
    gathered = ""
    for line in text.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""
