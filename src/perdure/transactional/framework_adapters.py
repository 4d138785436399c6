"""Adapters for connections of SQLAlchemy and Django, which report their commits."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from ..errors import InvalidCall, StoreError
from ..storage.database_identity import ABORTED
from .driver_adapters import autocommitting, refuse_psycopg_state, refuse_sqlite_autocommit
from .statements import Rows, Statement, Tells

_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$1", "numeric": ":1"}


class AlchemyLine:
    """A connection of SQLAlchemy, perhaps of a session."""

    def __init__(self, connection: Any, session: Any) -> None:
        self._connection = connection
        self._session = session

    @property
    def dialect(self) -> str:
        return str(self._connection.dialect.name)

    def execute(self, statement: Statement) -> Rows:
        text = statement.written(_PLACEHOLDERS.get(self._connection.dialect.default_paramstyle, "%s"))
        result = self._connection.exec_driver_sql(text, statement.parameters)
        return [tuple(row) for row in result] if statement.answers else []

    def driver(self) -> Any:
        raw = self._connection.connection.driver_connection
        return getattr(raw, "_conn", raw)  # aiosqlite keeps the connection of the standard library inside

    def check(self) -> None:
        remedy = "use an engine without isolation_level=AUTOCOMMIT"
        driver = self.driver()
        library = type(driver).__module__.partition(".")[0]
        if self.dialect == "sqlite":
            refuse_sqlite_autocommit(driver, remedy)
        elif library == "psycopg":
            refuse_psycopg_state(driver, remedy)
        elif getattr(self._connection.connection.dbapi_connection, "autocommit", False) is True:
            raise autocommitting(remedy)

    def after_commit(self, teller: Tells) -> None:
        from sqlalchemy import event

        if self._session is not None:
            _when_session_commits(event, self._session, teller)
        else:
            _when_connection_commits(event, self._connection, teller)


class DjangoLine:
    """`django.db.connection`, or one of `connections`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        return str(self._connection.vendor)

    def execute(self, statement: Statement) -> Rows:
        with self._connection.cursor() as cursor:
            # Django's own placeholder: its query log formats with it
            cursor.execute(statement.written("%s"), statement.parameters or None)
            return [tuple(row) for row in cursor.fetchall()] if statement.answers else []

    def driver(self) -> Any:
        return self._connection.connection

    def check(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise InvalidCall("connection= is in no transaction: enqueue inside `with transaction.atomic():`")
        if self._connection.needs_rollback:
            raise StoreError(ABORTED)

    def after_commit(self, teller: Tells) -> None:
        if self._connection.in_atomic_block:  # a transaction that is begun and ended by hand is not reported
            self._connection.on_commit(teller.now)


# ---- after the commit ------------------------------------------------------------------------------
_waiting: WeakKeyDictionary[Any, list[Tells]] = WeakKeyDictionary()  # sessions and connections that we listen to


def _when_session_commits(event: Any, session: Any, teller: Tells) -> None:
    def committed(session: Any) -> None:
        if not session.in_nested_transaction():
            for each in _notify(session):
                each.now()

    def rolled_back(session: Any) -> None:
        if not session.in_nested_transaction():
            _notify(session)

    if session not in _waiting:
        event.listen(session, "after_commit", committed)
        event.listen(session, "after_rollback", rolled_back)
    _waiting.setdefault(session, []).append(teller)


def _when_connection_commits(event: Any, connection: Any, teller: Tells) -> None:
    """A connection reports before it commits, so the workers are woken a little later, and again."""

    def committed(connection: Any) -> None:
        for each in _notify(connection):
            each.soon()

    if connection not in _waiting:
        event.listen(connection, "commit", committed)
        event.listen(connection, "rollback", _notify)
    _waiting.setdefault(connection, []).append(teller)


def _notify(target: Any) -> list[Tells]:
    """The wake-ups for the end of this transaction, which are removed."""
    waiting = _waiting[target]
    told = waiting[:]
    waiting.clear()
    return told
