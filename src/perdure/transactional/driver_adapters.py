"""Adapters for connections of database drivers: sqlite3, apsw, psycopg, asyncpg. They do not report commits."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidCall, StoreError
from ..storage.database_identity import ABORTED
from .statements import Rows, Statement, Tells

IDLE, IN_ERROR = 0, 3  # libpq's states of a transaction


class _Untold:
    def after_commit(self, teller: Tells) -> None:
        """The store notices by itself, or the caller signals."""


class SqliteLine(_Untold):
    """A connection of the standard library."""

    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        cursor = self._connection.cursor()
        try:
            cursor.row_factory = None
            return list(cursor.execute(statement.text, statement.parameters))
        finally:
            cursor.close()

    def driver(self) -> Any:
        return self._connection

    def check(self) -> None:
        refuse_sqlite_autocommit(self._connection, "run BEGIN IMMEDIATE on it first")


class ApswLine(_Untold):
    """A connection of apsw."""

    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        return list(self._connection.execute(statement.text, statement.parameters))

    def driver(self) -> Any:
        return self._connection

    def check(self) -> None:
        if not self._connection.in_transaction:
            raise InvalidCall(
                "connection= is in no transaction: run BEGIN IMMEDIATE on it first, or use `with connection:`"
            )


class _Psycopg(_Untold):
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def driver(self) -> Any:
        return self._connection

    def check(self) -> None:
        refuse_closed(self._connection.closed)
        refuse_psycopg_state(self._connection, "enqueue inside `with connection.transaction():`")


class PsycopgLine(_Psycopg):
    """A connection of psycopg, perhaps of a pool."""

    def execute(self, statement: Statement) -> Rows:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        # a plain cursor, whatever kind the caller has made the usual one
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.written("%s").encode(), statement.parameters or None)
            return cursor.fetchall() if statement.answers else []


class AsyncPsycopgLine(_Psycopg):
    """An AsyncConnection of psycopg, perhaps of a pool."""

    async def execute(self, statement: Statement) -> Rows:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement.written("%s").encode(), statement.parameters or None)
            return await cursor.fetchall() if statement.answers else []


class AsyncpgLine(_Untold):
    """A connection of asyncpg, perhaps of a pool."""

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: Statement) -> Rows:
        return [tuple(row) for row in await self._connection.fetch(statement.written("$1"), *statement.parameters)]

    def driver(self) -> Any:
        return getattr(self._connection, "_con", self._connection)  # a pool lends a proxy

    def check(self) -> None:
        refuse_closed(self._connection.is_closed())
        if not self._connection.is_in_transaction():
            raise InvalidCall(
                "connection= is in no transaction, so nothing could be undone: "
                "enqueue inside `async with connection.transaction():`"
            )


# ---- what cannot be joined -------------------------------------------------------------------------
def refuse_closed(closed: bool) -> None:
    if closed:
        raise InvalidCall("connection= is closed")


def refuse_sqlite_autocommit(connection: Any, remedy: str) -> None:
    """A connection of the standard library begins by itself at the first INSERT, unless that is switched off."""
    if connection is None or getattr(connection, "in_transaction", True):
        return
    if getattr(connection, "isolation_level", "") is None or getattr(connection, "autocommit", -1) is True:
        raise autocommitting(remedy)


def refuse_psycopg_state(connection: Any, remedy: str) -> None:
    """A connection of psycopg begins by itself at the first statement, unless that is switched off."""
    state = connection.info.transaction_status
    if state == IN_ERROR:
        raise StoreError(ABORTED)
    if state == IDLE and connection.autocommit:
        raise autocommitting(remedy)


def autocommitting(remedy: str) -> InvalidCall:
    return InvalidCall(f"connection= is in autocommit mode and in no transaction, so nothing could be undone: {remedy}")
