"""Callers' connections of every library, behind one face: run SQL, begin, commit, roll back, and savepoints by SQL.

`sync` tells that the connection blocks, `told` that workers are woken after its commit.
"""

from contextlib import asynccontextmanager

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.support.addresses import ON_SERVERS


class Caller:
    """A connection that begins by itself, and blocks."""

    sync, told = True, False

    def __init__(self, connection):
        self.connection = connection

    async def begin(self):
        pass

    async def run(self, statement):
        return self.connection.execute(statement)

    async def fetch(self, statement):
        return [tuple(row) for row in (await self.run(statement)).fetchall()]

    async def commit(self):
        self.connection.commit()

    async def rollback(self):
        self.connection.rollback()


class Awaited(Caller):
    """The same, awaited."""

    sync = False

    async def run(self, statement):
        return await self.connection.execute(statement)

    async def fetch(self, statement):
        return [tuple(row) for row in await (await self.run(statement)).fetchall()]

    async def commit(self):
        await self.connection.commit()

    async def rollback(self):
        await self.connection.rollback()


class Asyncpg(Awaited):
    """It begins when it is told to."""

    async def begin(self):
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def fetch(self, statement):
        return [tuple(row) for row in await self.connection.fetch(statement)]

    async def commit(self):
        await self._transaction.commit()

    async def rollback(self):
        await self._transaction.rollback()


class Alchemy(Caller):
    told = True

    async def run(self, statement):
        return self.connection.execute(text(statement))


class AsyncAlchemy(Awaited):
    told = True

    async def run(self, statement):
        return await self.connection.execute(text(statement))

    async def fetch(self, statement):
        return [tuple(row) for row in await self.run(statement)]


# ---- how each is opened ----------------------------------------------------------------------------
@asynccontextmanager
async def _psycopg(dsn):
    with psycopg.connect(dsn) as connection:
        yield Caller(connection)


@asynccontextmanager
async def _psycopg_pool(dsn):
    with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True) as pool, pool.connection() as connection:
        yield Caller(connection)


@asynccontextmanager
async def _psycopg_async(dsn):
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield Awaited(connection)


@asynccontextmanager
async def _psycopg_async_pool(dsn):
    async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, open=False) as pool, pool.connection() as connection:
        yield Awaited(connection)


@asynccontextmanager
async def _asyncpg(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        yield Asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(dsn):
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as connection:
        yield Asyncpg(connection)


def _alchemy(opened):
    @asynccontextmanager
    async def caller(dsn):
        engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
        connection = opened(engine)
        try:
            yield Alchemy(connection)
        finally:
            connection.close()
            engine.dispose()

    return caller


def _async_alchemy(driver, opened):
    @asynccontextmanager
    async def caller(dsn):
        engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
        connection = opened(engine)
        if not hasattr(connection, "execute"):
            connection = await connection
        try:
            yield AsyncAlchemy(connection)
        finally:
            await connection.close()
            await engine.dispose()

    return caller


async def _connected(engine):
    return await engine.connect()


CALLERS = {
    "psycopg": _psycopg,
    "psycopg pool": _psycopg_pool,
    "psycopg async": _psycopg_async,
    "psycopg async pool": _psycopg_async_pool,
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "Session": _alchemy(Session),
    "Connection": _alchemy(lambda engine: engine.connect()),
    "scoped_session": _alchemy(lambda engine: scoped_session(sessionmaker(engine))),
    "AsyncSession, psycopg": _async_alchemy("psycopg", AsyncSession),
    "AsyncSession, asyncpg": _async_alchemy("asyncpg", AsyncSession),
    "AsyncConnection, psycopg": _async_alchemy("psycopg", _connected),
    "AsyncConnection, asyncpg": _async_alchemy("asyncpg", _connected),
    "async_scoped_session, asyncpg": _async_alchemy(
        "asyncpg", lambda engine: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    ),
}

# the libraries are the same whatever server they speak to: on the older one, one of each driver
_ON_OLDER = ("psycopg", "psycopg async", "asyncpg", "Session", "AsyncSession, asyncpg")
with_every_caller = pytest.mark.parametrize(
    ("kind", "caller_of"),
    [
        pytest.param(kind, caller, id=f"{kind}-{name}")
        for kind in ON_SERVERS
        if kind.startswith("postgres")
        for name, caller in CALLERS.items()
        if kind == "postgres" or name in _ON_OLDER
    ],
    indirect=["kind"],
)
