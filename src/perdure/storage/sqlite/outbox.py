"""An outbox in a caller's SQLite file. It leaves the journal mode of the file as it is.

A relay takes a lock on a file beside the database, which is free as soon as its process ends. Where such a lock is not
possible, relays work without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from perdure.core.clock import Clock, reader
from perdure.core.record import ROW_VERSION, NewJob
from perdure.errors import PerdureError, StoreError
from perdure.storage import migrations
from perdure.storage.contract import CallerStatements
from perdure.storage.database_identity import DatabaseIdentity
from perdure.storage.outbox import MOST_BYTES, Aside, Batch, Entry, Outbox, OutboxState, queues_text, rows_text

from .connection import process_shared
from .connection.busy import retry_of
from .connection.database_file import DatabaseFile
from .connection.driver import BUSY, LOCKED, Connection, DriverName
from .connection.process_shared import Shared
from .connection.work import Work
from .connection.writer import Writer
from .database_identity import SqliteIdentity
from .queries import load
from .schema import SqliteLedger, load_outbox_migrations

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
MADE_WITHIN = 2.0  # seconds: the caller that waits for the table may itself hold the lock that this needs
_SIGNAL = frozenset({"outbox"})


@cache
def _sql() -> dict[str, str]:
    return load("outbox")


@dataclass(frozen=True)
class OutboxIdentity(SqliteIdentity):
    """The file of an outbox."""

    role = "outbox"

    def explain(self, error: BaseException) -> PerdureError:
        if "no such table" in str(error):
            return StoreError(f"the database behind connection= has no outbox ({error}): {_remedy(self.file)}")
        return super().explain(error)


class SqliteOutbox(Outbox):
    """The outbox of one event loop."""

    name = "SQLite"

    def __init__(
        self, file: DatabaseFile, *, driver: DriverName = "sqlite3", clock: Clock | None = None, migrate: bool = True
    ) -> None:
        self._file = file
        self._driver = driver
        self._now = reader(clock)
        self._migrate = migrate
        self._shared: Shared | None = None
        self._opening = asyncio.Lock()

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        async with self._opening:
            if self._shared is not None and self._shared.process == os.getpid():
                return
            self._file.check()
            if not self._migrate and not self._file.exists():
                raise StoreError(f"{self._file} does not exist: {_remedy(self._file)}")
            self._shared = process_shared.acquire(
                process_shared.key_of(str(self._file)), self._file, self._driver, "as it is"
            )
            try:
                # the caller may hold the write lock itself, and the writer may be waiting for that: read before writing
                if not await self._shared.database.read(self._is_ready):
                    await self._shared.database.alone(self._prepare)
                self._shared.database.prepares[self] = self._prepare
            except BaseException:
                await self._close()
                raise

    async def close(self) -> None:
        async with self._opening:
            await self._close()

    async def _close(self) -> None:
        closing, self._shared = self._shared, None
        if closing is not None:
            closing.database.prepares.pop(self, None)
        if closing is None or closing.process != os.getpid() or not process_shared.release(closing):
            return
        await closing.close()

    def _is_ready(self, connection: Connection) -> bool:
        ledger = SqliteLedger(connection, self._file, self._in_use().database.retry_while_busy, outbox=True)
        return not migrations.status(ledger, load_outbox_migrations()).pending

    def _prepare(self, connection: Connection) -> None:
        driver = self._in_use().driver
        ledger = SqliteLedger(connection, self._file, retry_of(driver, MADE_WITHIN), outbox=True)
        try:
            if self._migrate:
                migrations.up(ledger, load_outbox_migrations())
            elif migrations.status(ledger, load_outbox_migrations()).pending:
                raise StoreError(f"{self._file} has no outbox of this version: {_remedy(self._file)}")
        except driver.error as error:
            if driver.code(error) not in (BUSY, LOCKED):
                raise
            raise StoreError(
                f"{self._file} has no outbox yet, and it cannot be made while a transaction keeps the file locked: end "
                f"that transaction; {_remedy(self._file)}"
            ) from error

    # -- for callers ---------------------------------------------------------------------------------
    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        insert = (_sql()["insert"], rows_text(jobs, self._now()))
        return CallerStatements((insert,), insert, insert)

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        return OutboxIdentity(self._file, self._driver)

    # -- for the relay -------------------------------------------------------------------------------
    @asynccontextmanager
    async def batch(self, limit: int, but: Collection[str]) -> AsyncIterator[Batch | None]:
        with self._relay_lock() as locked:
            if not locked:
                yield None
                return
            parameters = {"version": ROW_VERSION, "full": queues_text(but), "rows": limit, "bytes": MOST_BYTES}
            rows = await self._database().read(lambda connection: connection.rows(_sql()["batch"], parameters))
            yield SqliteBatch(self, [Entry(*row) for row in rows])

    @contextmanager
    def _relay_lock(self) -> Iterator[bool]:
        folder = self._file.beside()
        if folder is None or fcntl is None:
            yield True
            return
        try:
            lock = os.open(folder / "relay", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            yield True
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            yield not isinstance(error, BlockingIOError)
            return
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # explicitly, because a forked child may share the file
            os.close(lock)

    async def state(self) -> OutboxState:
        ((waiting, since, aside),) = await self._database().read(lambda link: link.rows(_sql()["counts"]))
        return OutboxState(waiting, None if since is None else max(0, self._now() - since), aside)

    async def list_aside(self, limit: int) -> list[Aside]:
        rows = await self._database().read(lambda connection: connection.rows(_sql()["aside"], (limit,)))
        return [Aside(number, _text_of(id), _text_of(error), since) for number, id, error, since in rows]

    async def bring_back(self) -> int:
        return await self._database().write(lambda work: work.connection.change(_sql()["bring_back"]))

    async def confirm(self, moved: Sequence[int], aside: Sequence[tuple[int, str]]) -> None:
        def write(work: Work) -> None:
            if moved:
                work.connection.change(_sql()["moved"], (json.dumps(moved),))
            if aside:
                work.connection.change(_sql()["set_aside"], {"now": self._now(), "rows": json.dumps(aside)})

        await self._database().write(write)

    # -- signals -------------------------------------------------------------------------------------
    async def signal(self, queues: Sequence[str] = ()) -> None:
        if self._shared is not None:
            signals = self._shared.signals
            await self._shared.database.alone(lambda _: signals.send(_SIGNAL, False))

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._in_use().signals.listen("ready", wake)

    # -- below ---------------------------------------------------------------------------------------
    def _database(self) -> Writer:
        return self._in_use().database

    def _in_use(self) -> Shared:
        if self._shared is None or self._shared.process != os.getpid():
            raise StoreError(f"the outbox in {self._file} is not open")
        return self._shared


class SqliteBatch(Batch):
    """A batch that keeps no transaction open: the caller's file has one writer at a time."""

    def __init__(self, outbox: SqliteOutbox, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._outbox = outbox

    async def confirm(self, moved: Sequence[int], aside: Sequence[tuple[int, str]]) -> None:
        if moved or aside:
            await self._outbox.confirm(moved, aside)


def _text_of(text: bytes | None) -> str:
    """A text for messages, whatever bytes it has."""
    return "" if text is None else text.decode("utf-8", "backslashreplace")


def _remedy(file: DatabaseFile) -> str:
    return f"run `perdure migrate --outbox sqlite:///{file}` once, or use the app outside of a transaction first"
