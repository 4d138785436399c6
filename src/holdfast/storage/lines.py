"""The kinds of connections that callers own, each with the same few verbs: run a statement, say what it is below, check
that it can be joined, and tell of its commit."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

from ..errors import HoldfastError, InvalidCall, StoreError
from ..sync import in_caller, is_blocking

T = TypeVar("T")

_BUSY = (5, 6)


class Tells(Protocol):
    """Who wakes the workers: at once, or soon after."""

    def now(self) -> None: ...
    def soon(self) -> None: ...


class Line(Protocol):
    """A caller's connection: how to run a statement on it, and what it is below."""

    def execute(self, statement: str, parameter: str | None = None) -> list[tuple[Any, ...]]: ...
    def driver(self) -> Any: ...
    def check(self) -> None: ...
    def after_commit(self, teller: Tells) -> None: ...


# ---- whose connection it is ------------------------------------------------------------------------
Work = Callable[[Line], T]
Reach = Callable[[Work[list[tuple[Any, ...]]]], Awaitable[list[tuple[Any, ...]]]]


def reach_of(connection: Any) -> Reach:
    """How to do work on this connection, whatever library it comes from."""
    if _is(connection, "sqlite3", "Connection"):
        return _here(lambda: SqliteLine(connection))
    if _is(connection, "apsw", "Connection"):
        return _here(lambda: ApswLine(connection))
    if _is(connection, "sqlalchemy.orm.scoping", "scoped_session"):
        return reach_of(connection())
    if _is(connection, "sqlalchemy.orm.session", "Session"):
        return _here(lambda: AlchemyLine(connection.connection(), connection))
    if _is(connection, "sqlalchemy.engine.base", "Connection"):
        return _here(lambda: AlchemyLine(connection, None))
    if _is(connection, "sqlalchemy.ext.asyncio.scoping", "async_scoped_session"):
        return reach_of(connection())
    if _is(connection, "sqlalchemy.ext.asyncio.session", "AsyncSession"):
        return _there(connection, lambda session: AlchemyLine(session.connection(), session))
    if _is(connection, "sqlalchemy.ext.asyncio.engine", "AsyncConnection"):
        return _there(connection, lambda inner: AlchemyLine(inner, None))
    if _is(connection, "django.utils.connection", "ConnectionProxy") or _is(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    ):
        return _here(lambda: DjangoLine(connection))
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidCall(
        f"connection= does not know {kind}; it takes a connection of sqlite3 or apsw, a Session or Connection of SQLAlchemy "
        "(sync or async), a connection of Django, a session of pymongo, or the tx of a handler"
    )


def session_form(connection: Any) -> Literal["blocking", "awaited"] | None:
    """Whether this is a session of MongoDB's driver, and of which of its forms."""
    if _is(connection, "pymongo.synchronous.client_session", "ClientSession"):
        return "blocking"
    return "awaited" if _is(connection, "pymongo.asynchronous.client_session", "AsyncClientSession") else None


def _is(value: object, module: str, name: str) -> bool:
    # only a library that is loaded can have made the connection
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _here(line: Callable[[], Line]) -> Reach:
    async def reach(work: Work[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        return await in_caller(lambda: _translated(lambda: work(line())))

    return reach


def _there(connection: Any, line: Callable[[Any], Line]) -> Reach:
    async def reach(work: Work[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        if is_blocking():
            raise InvalidCall(
                f"{type(connection).__name__} belongs to an event loop: await the enqueue there instead of its blocking form"
            )
        rows: list[tuple[Any, ...]] = await connection.run_sync(lambda inner: _translated(lambda: work(line(inner))))
        return rows

    return reach


class SqliteLine:
    """A connection of the standard library."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, parameter: str | None = None) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        try:
            cursor.row_factory = None
            return list(cursor.execute(statement, () if parameter is None else (parameter,)))
        finally:
            cursor.close()

    def driver(self) -> Any:
        return self._connection

    def check(self) -> None:
        refuse_autocommit(self._connection, "run BEGIN IMMEDIATE on it first")

    def after_commit(self, teller: Tells) -> None:
        """Nobody tells of a raw connection's commit."""


class ApswLine:
    """A connection of apsw."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, parameter: str | None = None) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(statement, () if parameter is None else (parameter,)))

    def driver(self) -> Any:
        return self._connection

    def check(self) -> None:
        if not self._connection.in_transaction:
            raise InvalidCall(
                "connection= is in no transaction: run BEGIN IMMEDIATE on it first, or use `with connection:`"
            )

    def after_commit(self, teller: Tells) -> None:
        """Nobody tells of a raw connection's commit."""


class AlchemyLine:
    """A connection of SQLAlchemy, perhaps of a session."""

    def __init__(self, connection: Any, session: Any) -> None:
        self._connection = connection
        self._session = session

    def execute(self, statement: str, parameter: str | None = None) -> list[tuple[Any, ...]]:
        result = self._connection.exec_driver_sql(statement, () if parameter is None else (parameter,))
        return [tuple(row) for row in result] if result.returns_rows else []

    def driver(self) -> Any:
        raw = self._connection.connection.driver_connection
        return getattr(raw, "_conn", raw)  # aiosqlite keeps the connection of the standard library inside

    def check(self) -> None:
        if self._connection.dialect.name != "sqlite":
            raise StoreError(
                f"connection= leads to {self._connection.dialect.name}, the app's store is SQLite; "
                "jobs join a transaction only in their own database"
            )
        refuse_autocommit(self.driver(), "use an engine without isolation_level=AUTOCOMMIT")

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

    def execute(self, statement: str, parameter: str | None = None) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            # Django's own placeholder: its query log formats with it
            cursor.execute(statement.replace("?", "%s"), None if parameter is None else (parameter,))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def driver(self) -> Any:
        return self._connection.connection

    def check(self) -> None:
        if self._connection.vendor != "sqlite":
            raise StoreError(
                f"connection= leads to {self._connection.vendor}, the app's store is SQLite; "
                "jobs join a transaction only in their own database"
            )
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise InvalidCall("connection= is in no transaction: enqueue inside `with transaction.atomic():`")

    def after_commit(self, teller: Tells) -> None:
        self._connection.on_commit(teller.now)


def refuse_autocommit(connection: Any, remedy: str) -> None:
    """A connection of the standard library begins by itself at the first INSERT, unless it is told not to."""
    if connection is None or getattr(connection, "in_transaction", True):
        return
    if getattr(connection, "isolation_level", "") is None or getattr(connection, "autocommit", -1) is True:
        raise InvalidCall(
            f"connection= is in autocommit mode and in no transaction, so nothing could be undone: {remedy}"
        )


# ---- errors of their drivers --------------------------------------------------------------------------
def _translated(work: Callable[[], T]) -> T:
    """Errors of the caller's driver, whatever wraps them, as ours, with what to do."""
    try:
        return work()
    except HoldfastError:
        raise
    except Exception as error:
        raise _as_ours(error) from error


def _as_ours(error: Exception) -> HoldfastError:
    root = _root(error)
    text = str(root)
    code = getattr(root, "sqlite_errorcode", getattr(root, "result", None))
    if "no such table" in text or "no such column" in text or "has no column" in text:
        return StoreError(
            f"the database behind connection= has not the tables of this version ({text}): run `holdfast migrate` once"
        )
    if (isinstance(code, int) and code & 0xFF in _BUSY) or "is locked" in text:
        return StoreError(
            f"the database behind connection= is busy ({text}): begin with BEGIN IMMEDIATE, because a transaction that "
            "has read first cannot wait for the write lock; roll back and repeat"
        )
    if type(root).__name__ in ("SynchronousOnlyOperation", "ProgrammingError", "ThreadingViolationError"):
        return InvalidCall(
            f"connection= cannot be used from here: {text}; enqueue where the connection lives, "
            "with the blocking form (task.sync.enqueue) in synchronous code"
        )
    return StoreError(f"the enqueue on connection= failed: {type(root).__name__}: {text}")


def _root(error: BaseException) -> BaseException:
    while True:
        inner = getattr(error, "orig", None) or error.__cause__
        if not isinstance(inner, BaseException):
            return error
        error = inner


# ---- after the commit ------------------------------------------------------------------------------
_waiting: WeakKeyDictionary[Any, list[Tells]] = WeakKeyDictionary()  # sessions and connections that we listen to


def _when_session_commits(event: Any, session: Any, teller: Tells) -> None:
    def committed(session: Any) -> None:
        if not session.in_nested_transaction():
            for each in _told(session):
                each.now()

    def rolled_back(session: Any) -> None:
        if not session.in_nested_transaction():
            _told(session)

    if session not in _waiting:
        event.listen(session, "after_commit", committed)
        event.listen(session, "after_rollback", rolled_back)
    _waiting.setdefault(session, []).append(teller)


def _when_connection_commits(event: Any, connection: Any, teller: Tells) -> None:
    """A connection tells before it commits, so the workers are told a little later, and again."""

    def committed(connection: Any) -> None:
        for each in _told(connection):
            each.soon()

    if connection not in _waiting:
        event.listen(connection, "commit", committed)
        event.listen(connection, "rollback", _told)
    _waiting.setdefault(connection, []).append(teller)


def _told(target: Any) -> list[Tells]:
    """Who was to be told of this transaction's end; from now on nobody."""
    waiting = _waiting[target]
    told = waiting[:]
    waiting.clear()
    return told
