"""The way to the server: two pools of connections, transactions, and patience.

`quick` connections run the few statements that a queue lives on. Their planner settings keep those on their indexes: a
plan made while a table was empty would otherwise read the whole table for ever. `plain` connections run everything else
with the user's own settings, so that a long listing never keeps a renewal waiting.

Behind a pooler (PgBouncer in transaction mode) a session is not ours: nothing is prepared, set or listened to there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.adapt import AdaptersMap
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

from .address import Address
from .faults import broken, conflicting, explained

T = TypeVar("T")
Connection = AsyncConnection[tuple[Any, ...]]
Cursor = AsyncCursor[tuple[Any, ...]]
Work = Callable[[Connection], Awaitable[T]]
Statement = tuple[str, Mapping[str, Any]]

QUICK, PLAIN, TRANSACTIONS = 4, 4, 32  # connections at most
CONNECT_WITHIN = 10.0
PATIENCE = 30.0  # seconds that a word which may be repeated is repeated over broken connections
CONFLICTS = 20
_log = logging.getLogger("holdfast")

_ON_INDEXES = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
_OURS = {
    # a host that dies with a transaction open must not keep its locks
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "jit": "off",
}


class Server:
    """One loop's connections."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pooled = False  # somebody stands between us and the server
        self.version = 0
        self._quick = self._pool(QUICK, self._prepare_quick)
        self._plain = self._pool(PLAIN, self._prepare)
        self._transactions = self._pool(TRANSACTIONS, self._prepare, least=0)

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Look at the server with a connection of its own, so that what is wrong is said at once and in its words."""
        try:
            async with await self.connect() as connection:
                self.version = connection.info.server_version
                backend = await _value(connection, "SELECT pg_backend_pid()")
                self.pooled = backend != connection.info.backend_pid
            for pool in (self._quick, self._plain, self._transactions):
                await pool.open(wait=False)
        except psycopg.Error as error:
            raise explained(error, str(self.address)) from error

    async def close(self) -> None:
        for pool in (self._quick, self._plain, self._transactions):
            with suppress(psycopg.Error):
                await pool.close(timeout=5.0)

    async def connect(self) -> Connection:
        """A connection beside the pools."""
        connecting = AsyncConnection.connect(self.address.dsn, autocommit=True, **self.address.defaults)
        return await asyncio.wait_for(connecting, CONNECT_WITHIN + 5.0)

    # -- work ----------------------------------------------------------------------------------------
    async def quickly(self, work: Work[T], *, repeat: bool = False) -> T:
        """Run work that the queue lives on. With `repeat`, it is run again after a broken connection."""
        return await self._patiently(self._quick, work, repeat)

    async def plainly(self, work: Work[T], *, repeat: bool = True) -> T:
        """Run other work."""
        return await self._patiently(self._plain, work, repeat)

    async def lend(self) -> Connection:
        """A connection for a handler's transaction; give it back."""
        try:
            return await self._transactions.getconn(CONNECT_WITHIN)
        except psycopg.Error as error:
            raise explained(error, str(self.address)) from error

    async def give_back(self, connection: Connection) -> None:
        await self._transactions.putconn(connection)

    async def _patiently(self, pool: AsyncConnectionPool[Connection], work: Work[T], repeat: bool) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + (PATIENCE if repeat else 0.0)
        tries = 0
        while True:
            try:
                async with pool.connection(CONNECT_WITHIN) as connection:
                    return await work(connection)
            except psycopg.Error as error:
                tries += 1
                if conflicting(error) and tries < CONFLICTS:
                    await asyncio.sleep(random.uniform(0, 0.005 * tries))
                elif broken(error) and loop.time() < until:
                    await asyncio.sleep(random.uniform(0.05, min(2.0, 0.1 * 2**tries)))
                else:
                    raise explained(error, str(self.address)) from error

    # -- connections ---------------------------------------------------------------------------------
    def _pool(
        self, most: int, prepare: Callable[[Connection], Awaitable[None]], *, least: int = 1
    ) -> AsyncConnectionPool[Connection]:
        return AsyncConnectionPool(
            self.address.dsn,
            kwargs={"autocommit": True, **self.address.defaults},
            min_size=least,
            max_size=most,
            open=False,
            configure=prepare,
            timeout=CONNECT_WITHIN,
            max_idle=300.0,
            reconnect_timeout=float("inf"),
            num_workers=2,
        )

    async def _prepare(self, connection: Connection) -> None:
        _read_as_texts(connection.adapters)
        if self.pooled:
            connection.prepare_threshold = None
            return
        connection.prepare_threshold = 2
        await self._set(connection, _OURS)

    async def _prepare_quick(self, connection: Connection) -> None:
        await self._prepare(connection)
        if not self.pooled:
            connection.prepare_threshold = 0
            await self._set(connection, dict.fromkeys(_ON_INDEXES, "off"))

    async def _set(self, connection: Connection, settings: dict[str, str]) -> None:
        for name, value in settings.items():
            with suppress(psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
                await connection.execute("SELECT set_config(%s, %s, false)", (name, value), prepare=False)


def _read_as_texts(adapters: AdaptersMap) -> None:
    adapters.register_loader("uuid", TextLoader)


async def _value(connection: Connection, statement: str) -> Any:
    row = await (await connection.execute(statement.encode())).fetchone()
    assert row is not None
    return row[0]


async def together(connection: Connection, statements: Sequence[Statement]) -> list[Cursor]:
    """Run statements in one round trip; outside a transaction they are one by themselves."""
    if len(statements) == 1:
        return [await connection.execute(*statements[0])]
    async with connection.pipeline():
        return [await connection.execute(*statement) for statement in statements]
