"""Opening and closing the MongoDB store, and how a verb reaches its server.

`MongoStorage` adds the verbs. A verb runs while `close` waits for it, for a bounded time, and never after a fork.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from perdure.core.clock import Clock, reader
from perdure.errors import StoreError
from perdure.storage import migrations
from perdure.storage.contract import Storage
from perdure.storage.opening import Demand, check_durability, refuse_after_fork

from .address import MongoAddress
from .connection import health
from .connection.errors import Unreachable
from .connection.operations import Steps
from .connection.server import CALLS_WITHIN, Server
from .connection.server_clock import ServerClock
from .connection.signals import Signals
from .edges.resolve_edges import Afterwards
from .schema import META, MongoLedger, connect, load_migrations
from .upkeep import inspection
from .writing.exchange import Exchanges

T = TypeVar("T")


class MongoLifetime(Storage):
    """A store of one event loop: open, closed, or opened before this process was forked."""

    name = "MongoDB"
    # when half a chunk has ended a worker begins a second exchange, which is made here while the server has the first one
    chunk = 250
    exchanges_in_flight = 2
    answer_timeout = 5.0

    def __init__(
        self, address: MongoAddress, *, clock: Clock | None = None, demand: Demand = "normal", migrate: bool = True
    ) -> None:
        self._address = address
        self.place = str(address)
        self._clock = clock
        self._demand = demand
        self._migrate = migrate
        self._server: Server | None = None
        self._process = os.getpid()
        self._opening = asyncio.Lock()
        self._under_way: set[object] = set()
        self._idle = asyncio.Event()
        self._inspected: inspection.Positions = {}  # how far the last inspection got
        self._pinned: set[str] = set()  # jobs whose handlers have a transaction open here

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._server is not None and not self._forked():
                return
            server = Server(self._address, self.gives_up_after, self._client_replaced)
            try:
                health.check(await server.hello(), self._address)
                await self._prepare(server)
                found = await health.durability(server, await server.hello())
                check_durability(found, self._demand, self._address)
                if self._clock is None:
                    self._time = ServerClock(server.now)
                    await self._time.follow()
                    self._now: Callable[[], int] = self._time
                else:
                    self._now = reader(self._clock)
            except BaseException:
                await server.close()
                raise
            self._server = server
            self._signals = Signals(server)
            self._afterwards = Afterwards(self._write, self._now, self._signals.tell, self.chunk)
            self._exchanges = Exchanges(
                self._in_use, self._write, self._read, self._now, self._signals.inside, self.chunk
            )
            self._process = os.getpid()

    async def close(self) -> None:
        async with self._opening:
            closing, self._server = self._server, None
            if closing is None or self._forked():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(CALLS_WITHIN):
                    while self._under_way:
                        self._idle.clear()
                        await self._idle.wait()
                    await closing.calls.finish()
            await self._signals.close()
            await closing.close()

    async def reconnect(self) -> None:
        server = self._in_use()
        server.replace_client()
        await server.hello()

    def _client_replaced(self) -> None:
        if self._server is not None:  # else it is just being opened
            self._signals.restart()

    # -- how a verb reaches the server ---------------------------------------------------------------
    async def _write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        retry_for: float | None = None,
        through_conflicts: bool = True,
        read_back: Callable[[], Steps[T | None]] | None = None,
    ) -> T:
        async with self._work() as server:
            return await server.write(
                steps, retry_for=retry_for, through_conflicts=through_conflicts, read_back=read_back
            )

    async def _read_then_write(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._work() as server:
            return await server.read_then_write(steps)

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._work() as server:
            return await server.read(steps)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[Server]:
        """The server, for a verb; `close` waits for it."""
        server = self._in_use()
        mark = object()
        self._under_way.add(mark)
        limit = asyncio.timeout(self.gives_up_after)
        try:
            async with limit:
                if self._clock is None:
                    await self._time.follow()
                yield server
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"{self._address}: no answer within {self.gives_up_after:g} s"
            raise Unreachable(message).at(self._address) from None
        finally:
            self._under_way.discard(mark)
            if not self._under_way:
                self._idle.set()

    def _in_use(self) -> Server:
        if self._server is None:
            raise StoreError(f"the store {self._address} is not open")
        refuse_after_fork(self._process, self._address)
        return self._server

    def _forked(self) -> bool:
        return self._process != os.getpid()

    async def _prepare(self, server: Server) -> None:
        """Check the schema, and make what is missing if that is wished."""
        await asyncio.to_thread(self._migrate_or_check)
        noted = await server.calls.run(server.database[META].find_one({"_id": "schema"}))
        self._identity = "" if noted is None else str(noted.get("identity", ""))

    def _migrate_or_check(self) -> None:
        with connect(self._address) as client:
            ledger = MongoLedger(client, self._address)
            if self._migrate:
                migrations.up(ledger, load_migrations())
            else:
                migrations.check(ledger, load_migrations())
