"""Opens and closes the PostgreSQL store, and gives its verbs their server.

`PostgresStorage` adds the verbs.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod

from perdure.core.clock import Clock, reader
from perdure.core.ids import new_id
from perdure.errors import StoreError
from perdure.storage import migrations
from perdure.storage.contract import Durability, Finding, Storage
from perdure.storage.opening import Demand, check_durability, refuse_after_fork

from .address import Address
from .connection.health import findings, read_durability
from .connection.server import Server
from .connection.signals import Signals
from .reading.listing import Listing
from .schema import PostgresLedger, load_migrations


class PostgresLifetime(Storage):
    """A store of one event loop: open, closed, or opened before this process was forked."""

    name = "PostgreSQL"
    exchanges_in_flight = 3
    bulk_chunk = 2_500
    bulk_in_flight = 2  # each on a connection of its own
    bulk_yield_seconds = 0.001
    answer_timeout = 5.0

    def __init__(
        self, address: Address, *, clock: Clock | None = None, demand: Demand = "normal", migrate: bool = True
    ) -> None:
        self._address = address
        self.place = str(address)
        self._clock = None if clock is None else reader(clock)
        self._demand = demand
        self._migrate = migrate
        self._listing = Listing(address.schema)
        self._opening = asyncio.Lock()
        self._opened: tuple[Server, Signals, int] | None = None

    @abstractmethod
    async def _recover(self, error: Exception) -> bool:
        """Set the row aside that made a statement fail. Returns whether it is worth repeating."""

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._opened is not None and self._opened[2] == os.getpid():
                return
            await asyncio.to_thread(self._check_schema)
            server = Server(self._address, self.gives_up_after, self._recover)
            await server.open()
            self._opened = (server, Signals(server, new_id()), os.getpid())
            try:
                await self._check_durability()
            except BaseException:
                await self._close()
                raise

    async def close(self) -> None:
        async with self._opening:
            await self._close()

    async def reconnect(self) -> None:
        server, signals, _ = self._in_use()
        server.hang_up()
        signals.hang_up()
        await server.run_indexed(self._listing.now)

    async def _close(self) -> None:
        if self._opened is None:
            return
        (server, signals, process), self._opened = self._opened, None
        if process != os.getpid():
            return
        await signals.close()
        await server.close()

    async def durability(self) -> Durability:
        return await self._server().run_default(lambda connection: read_durability(connection, self._address.schema))

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        return await self._server().run_indexed(self._listing.now, repeat=True)

    # -- the doctor ----------------------------------------------------------------------------------
    async def diagnose(self) -> list[Finding]:
        server = self._server()
        return await server.run_default(lambda connection: findings(server, connection))

    # -- below ---------------------------------------------------------------------------------------
    def _now(self) -> int | None:
        """The instant that a test's clock shows; None: the server's clock is read by the statement itself."""
        return None if self._clock is None else self._clock()

    def _server(self) -> Server:
        return self._in_use()[0]

    def _signals(self) -> Signals:
        return self._in_use()[1]

    def _in_use(self) -> tuple[Server, Signals, int]:
        if self._opened is None:
            raise StoreError(f"the store {self._address} is not open")
        refuse_after_fork(self._opened[2], self._address)
        return self._opened

    def _check_schema(self) -> None:
        ledger = PostgresLedger(self._address)
        try:
            known = load_migrations(self._address.schema)
            if self._migrate:
                migrations.up(ledger, known)
            else:
                migrations.check(ledger, known)
        finally:
            ledger.close()

    async def _check_durability(self) -> None:
        """Refuse or warn when an acknowledged job would not be safe."""
        check_durability(await self.durability(), self._demand, self._address)
