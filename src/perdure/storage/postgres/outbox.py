"""An outbox in a schema of a caller's PostgreSQL database.

A relay's turn is an advisory lock of the transaction in which it reads and deletes. The transaction stays open while the
relay calls the store, so that the lock is free when the relay dies. It locks none of the caller's rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from perdure.core.clock import Clock, reader
from perdure.core.ids import new_id
from perdure.core.record import NewJob
from perdure.errors import StoreError
from perdure.storage import migrations
from perdure.storage.contract import CallerStatements, Storage
from perdure.storage.database_identity import DatabaseIdentity
from perdure.storage.outbox import MOST_BYTES, Aside, Batch, Entry, Outbox, OutboxState, queue_text, rows_text

from .address import Address
from .connection.database_identity import PostgresIdentity
from .connection.errors import explain
from .connection.server import Connection, Server
from .connection.signals import Signals
from .queries import load
from .schema import PostgresLedger, load_migrations

_SIGNAL = frozenset({"outbox"})


class OutboxServer(Server):
    """A server that may be of any encoding: a row of the outbox is ASCII."""

    def _check(self, encoding: str, read_only: bool, standby: bool) -> None:
        super()._check("UTF8", read_only, standby)


@dataclass(frozen=True)
class OutboxIdentity(PostgresIdentity):
    """The database of an outbox."""

    role = "outbox"

    def _missing(self, message: str) -> StoreError:
        return StoreError(
            f"the database behind connection= has no outbox of this version ({message}): "
            "run `perdure migrate --outbox URL` once"
        )

    def _forbidden(self, message: str) -> StoreError:
        return StoreError(
            f"the role of connection= may not write into the outbox ({message}): it needs USAGE on the schema "
            f"{self.schema}, and INSERT on its table perdure_outbox"
        )


class PostgresOutbox(Outbox):
    """One loop's door to an outbox."""

    name = "PostgreSQL"

    def __init__(self, address: Address, *, clock: Clock | None = None, migrate: bool = True) -> None:
        self._address = address
        self._clock = None if clock is None else reader(clock)
        self._migrate = migrate
        self._sql = load("outbox", address.schema)
        self._home: DatabaseIdentity | None = None
        self._opening = asyncio.Lock()
        self._opened: tuple[Server, Signals, int] | None = None

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._opened is not None and self._opened[2] == os.getpid():
                return
            server = OutboxServer(self._address, Storage.gives_up_after)
            await server.open()
            await asyncio.to_thread(self._check_schema)
            self._opened = (server, Signals(server, new_id()), os.getpid())

    async def close(self) -> None:
        async with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None and opened[2] == os.getpid():
                await opened[1].close()
                await opened[0].close()

    def _check_schema(self) -> None:
        ledger = PostgresLedger(self._address, outbox=True)
        known = load_migrations(self._address.schema, outbox=True)
        try:
            if self._migrate:
                migrations.up(ledger, known)
            elif migrations.status(ledger, known).pending:
                raise StoreError(
                    f"{self._address} has no outbox of this version: run `perdure migrate --outbox URL` once"
                )
        finally:
            ledger.close()

    # -- for callers ---------------------------------------------------------------------------------
    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        insert = (self._sql["insert"], rows_text(jobs, self._now()))
        return CallerStatements((insert,), insert, insert)

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        if self._home is None or fresh:
            self._home = await self._server().run_default(self._look)
        return self._home

    async def _look(self, connection: Connection) -> DatabaseIdentity:
        ((database, started, *_),) = await _rows(connection, self._sql["which"], {})
        return OutboxIdentity(str(self._address), self._address.schema, self._sql["which"], str(database), int(started))

    # -- for the relay -------------------------------------------------------------------------------
    @asynccontextmanager
    async def batch(self, limit: int, but: Collection[str]) -> AsyncIterator[Batch | None]:
        values = {"but": [queue_text(queue) for queue in but], "limit": limit, "bytes": MOST_BYTES}
        if not await self._anything(values):
            yield PostgresBatch(None, [], self._sql, None)
            return
        server = self._server()
        connection = await server.lend()
        try:
            async with connection.transaction():
                ((ours,),) = await _rows(connection, self._sql["turn"], None)
                if not ours:
                    yield None
                    return
                entries = [Entry(*row) for row in await _rows(connection, self._sql["batch"], values)]
                yield PostgresBatch(connection, entries, self._sql, self._now())
        except (psycopg.Error, OSError) as error:
            raise explain(error, str(self._address)) from error
        finally:
            await server.give_back(connection)

    async def _anything(self, values: dict[str, Any]) -> bool:
        """A look that costs next to nothing, since most find nothing."""
        ((waits,),) = await self._server().run_default(
            lambda connection: _rows(connection, self._sql["waits"], values), repeat=False
        )
        return bool(waits)

    async def state(self) -> OutboxState:
        (row,) = await self._asked("standing", now=self._now())
        return OutboxState(row[0], None if row[1] is None else max(0, row[1]), row[2])

    async def list_aside(self, limit: int) -> list[Aside]:
        rows = await self._asked("aside", limit=limit)
        return [Aside(number, id, error or "", since) for number, id, error, since in rows]

    async def bring_back(self) -> int:
        async def write(connection: Connection) -> int:
            return (await connection.execute(self._sql["bring_back"])).rowcount

        return await self._server().run_default(write)

    async def _asked(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return await self._server().run_default(lambda connection: _rows(connection, self._sql[name], values))

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str] = ()) -> None:
        if self._opened is not None:
            self._opened[1].tell(_SIGNAL, False)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._server()
        assert self._opened is not None
        return self._opened[1].listen("ready", wake)

    # -- below ---------------------------------------------------------------------------------------
    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()

    def _server(self) -> Server:
        if self._opened is None or self._opened[2] != os.getpid():
            raise StoreError(f"the outbox {self._address} is not open")
        return self._opened[0]


class PostgresBatch(Batch):
    """Inside the transaction that holds the relay's turn."""

    def __init__(self, connection: Any, entries: Sequence[Entry], sql: Any, now: int | None) -> None:
        self.entries = entries
        self._connection = connection
        self._sql = sql
        self._now = now

    async def confirm(self, moved: Sequence[int], aside: Sequence[tuple[int, str]]) -> None:
        if moved:
            await self._connection.execute(self._sql["moved"], {"numbers": list(moved)})
        if aside:
            numbers, errors = zip(*aside, strict=True)
            kept = [error.replace("\x00", "\\x00") for error in errors]
            values = {"numbers": list(numbers), "errors": kept, "now": self._now}
            await self._connection.execute(self._sql["set_aside"], values)


async def _rows(connection: Any, statement: Any, values: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = await (await connection.execute(statement, values or None)).fetchall()
    return rows
