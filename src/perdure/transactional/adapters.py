"""Finds the adapter for a caller's connection: sqlite3, apsw, psycopg, asyncpg, SQLAlchemy or Django."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

from ..errors import InvalidCall
from ..sync import in_caller, is_blocking
from .driver_adapters import ApswLine, AsyncpgLine, AsyncPsycopgLine, PsycopgLine, SqliteLine
from .framework_adapters import AlchemyLine, DjangoLine
from .statements import AsyncCallerConnection, CallerConnection, Explain, StatementScript, run_script, run_script_async

T = TypeVar("T")


class ConnectionRunner(Protocol):
    """Runs a script of statements on a caller's connection, in the thread or event loop to which it belongs."""

    def __call__(
        self, talk: Callable[[CallerConnection | AsyncCallerConnection], StatementScript[T]], explain: Explain, /
    ) -> Awaitable[T]: ...


def adapter_for(connection: Any) -> ConnectionRunner:
    """How to reach this connection, whatever library it comes from."""
    if _is(connection, "sqlite3", "Connection"):
        return _here(lambda: SqliteLine(connection))
    if _is(connection, "apsw", "Connection"):
        return _here(lambda: ApswLine(connection))
    if _is(connection, "psycopg", "Connection"):
        return _here(lambda: PsycopgLine(connection))
    if _is(connection, "psycopg", "AsyncConnection"):
        return _run_awaited(connection, AsyncPsycopgLine(connection))
    if _is(connection, "asyncpg.connection", "Connection") or _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return _run_awaited(connection, AsyncpgLine(connection))
    if _is(connection, "sqlalchemy.orm.scoping", "scoped_session"):
        return _here(lambda: _of_session(connection()))  # each thread has its own
    if _is(connection, "sqlalchemy.orm.session", "Session"):
        return _here(lambda: _of_session(connection))
    if _is(connection, "sqlalchemy.engine.base", "Connection"):
        return _here(lambda: AlchemyLine(connection, None))
    if _is(connection, "sqlalchemy.ext.asyncio.scoping", "async_scoped_session"):
        return adapter_for(connection())
    if _is(connection, "sqlalchemy.ext.asyncio.session", "AsyncSession"):
        return _there(connection, _of_session)
    if _is(connection, "sqlalchemy.ext.asyncio.engine", "AsyncConnection"):
        return _there(connection, lambda inner: AlchemyLine(inner, None))
    if _is(connection, "django.utils.connection", "ConnectionProxy") or _is(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    ):
        return _here(lambda: DjangoLine(connection))
    raise _unknown(connection)


def _of_session(session: Any) -> CallerConnection:
    return AlchemyLine(session.connection(), session)


def session_form(connection: Any) -> Literal["blocking", "awaited"] | None:
    """Whether this is a session of MongoDB's driver, and of which of its forms."""
    if _is(connection, "pymongo.synchronous.client_session", "ClientSession"):
        return "blocking"
    return "awaited" if _is(connection, "pymongo.asynchronous.client_session", "AsyncClientSession") else None


def _is(value: object, module: str, name: str) -> bool:
    # only a library that is loaded can have made the connection
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _unknown(connection: Any) -> InvalidCall:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if type(connection).__name__.endswith(("Pool", "Engine", "sessionmaker")):
        return InvalidCall(
            f"connection= does not know {kind}: it has no transaction; give a connection or session of it"
        )
    return InvalidCall(
        f"connection= does not know {kind}; it takes a connection of sqlite3, apsw, psycopg or asyncpg, a Session or "
        "Connection of SQLAlchemy (sync or async), a connection of Django, a session of pymongo, or the tx of a handler"
    )


# ---- where it lives --------------------------------------------------------------------------------
def _here(line: Callable[[], CallerConnection]) -> ConnectionRunner:
    """In the thread of whoever called."""

    async def reach(
        talk: Callable[[CallerConnection | AsyncCallerConnection], StatementScript[T]], explain: Explain, /
    ) -> T:
        return await in_caller(lambda: run_script(line, talk, explain))

    return reach


def _there(connection: Any, line: Callable[[Any], CallerConnection]) -> ConnectionRunner:
    """Below an asynchronous form of SQLAlchemy, which runs blocking code beside its own loop."""

    async def reach(
        talk: Callable[[CallerConnection | AsyncCallerConnection], StatementScript[T]], explain: Explain, /
    ) -> T:
        _refuse_blocking_form(connection)
        value: T = await connection.run_sync(lambda inner: run_script(lambda: line(inner), talk, explain))
        return value

    return reach


def _run_awaited(connection: Any, line: AsyncCallerConnection) -> ConnectionRunner:
    """In the caller's own event loop."""

    async def reach(
        talk: Callable[[CallerConnection | AsyncCallerConnection], StatementScript[T]], explain: Explain, /
    ) -> T:
        _refuse_blocking_form(connection)
        return await run_script_async(line, talk, explain)

    return reach


def _refuse_blocking_form(connection: Any) -> None:
    if is_blocking():
        raise InvalidCall(
            f"{type(connection).__name__} belongs to an event loop: await the enqueue there instead of its blocking form"
        )
