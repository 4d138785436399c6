"""Runs work on the server: four pools of connections, time limits and retries.

The `quick` pool runs the few statements that a queue lives on. Its planner settings keep them on their indexes: a plan made
while a table was empty would otherwise read the whole table for ever. The `plain` pool runs everything else with the user's
own settings, so that a long listing never makes a renewal wait. A pool of two connections is for claims of limited jobs,
which take turns: whoever waits there makes nobody else wait, one writes its successes while the other has its turn, and
their statements, which take longest to plan, are planned only twice. The fourth pool is for the transactions of handlers.

Work runs in a task of its own. A cancelled caller stops waiting at once. The statement is not cut in two: it ends, or its
connection is closed a little later. So is the connection to a server that does not answer for long. However many callers
wait, each gets its answer or an error within the store's limit.

Behind a pooler (PgBouncer in transaction mode) sessions are shared: nothing is prepared or listened to there, and settings
are made for one transaction at a time.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from types import EllipsisType
from typing import Any, LiteralString, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.driver_calls import DriverCalls

from ..address import CONNECT_WITHIN, Address
from ..queries import load
from ..reading.records import Flawed
from .errors import (
    FULL_HOUSE,
    READ_ONLY,
    Unreached,
    explain,
    explain_connecting,
    is_broken,
    is_conflict,
    is_misread,
    state_of,
)
from .pool import Connection as Connection
from .pool import Pool, hang_up

T = TypeVar("T")
Cursor = AsyncCursor[tuple[Any, ...]]
Work = Callable[[Connection], Coroutine[Any, Any, T]]
Statement = tuple[LiteralString, Mapping[str, Any]]
Cure = Callable[[Exception], Awaitable[bool]]  # whether something was done about it

QUICK, TURNS, PLAIN, TRANSACTIONS = 4, 2, 4, 32  # connections at most
OLDEST = 130000
TAKE_WITHIN = 10.0  # seconds that a caller waits in line for a connection
ANSWER_WITHIN = {"quick": 20.0, "plain": 300.0}  # seconds after which a silent server is hung up on
SETTLE_WITHIN = 2.0  # seconds that a statement may go on after its caller was cancelled
CLOSE_WITHIN = 2.0  # seconds that work gets to end when the store is closed
PATIENCE = 30.0  # seconds for which repeatable work is retried over broken connections
CONFLICTS = 20
CURES = 5  # of one work
ANSWER_BYTES = 262_144  # read at once: libpq keeps the buffer that its largest message so far has needed

# Look-ups are written as loops over an index, and sets of one batch are hashed; nothing here is for the planner to weigh.
_ON_INDEXES = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
_OURS = {
    "default_transaction_isolation": "read committed",
    "jit": "off",
    # a host that dies with a transaction open must not keep its locks
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


class Session(AsyncConnection[tuple[Any, ...]]):
    """A connection of ours. `first` is run at the beginning of every transaction."""

    first: Statement | None = None

    async def execute(  # type: ignore[override]  # its values have names
        self, query: LiteralString, params: Mapping[str, Any] | None = None, *, prepare: bool | None = None
    ) -> Cursor:
        """As the driver's own, which reads a statement as long as ours anew whenever it is run."""
        text, names = _number_parameters(query)
        values = [params[name] for name in names] if params else None
        return await AsyncRawCursor(self).execute(text, values, prepare=prepare)

    @asynccontextmanager
    async def transaction(  # type: ignore[override]  # as the driver's own, silent about a server that is gone already
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[None]:
        inner = self.pgconn.transaction_status != TransactionStatus.IDLE
        begin, commit, *undo = _SAVEPOINT if inner else _TRANSACTION
        await self.execute(begin, prepare=False)
        try:
            if self.first is not None and not inner:
                await self.execute(*self.first)
            yield
        except BaseException:
            for each in undo:
                with suppress(psycopg.Error):
                    await self.execute(each, prepare=False)
            raise
        await self.execute(commit, prepare=False)


_NAMED = re.compile(r"%\((\w+)\)s")
_TRANSACTION: tuple[LiteralString, ...] = ("BEGIN", "COMMIT", "ROLLBACK")
_SAVEPOINT: tuple[LiteralString, ...] = ("SAVEPOINT ours", "RELEASE ours", "ROLLBACK TO ours", "RELEASE ours")


@lru_cache(maxsize=1024)
def _number_parameters(query: str) -> tuple[bytes, list[str]]:
    """The statement with its values by number, as the server knows them, and their names in this order."""
    names = list(dict.fromkeys(_NAMED.findall(query)))
    return _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", query).encode(), names


class Server:
    """One loop's connections."""

    def __init__(self, address: Address, limit: float, cure: Cure | None = None) -> None:
        """`limit`: seconds within which every caller has an answer or an error. `cure`: what to do about a stored value that
        cannot be read, before the work is repeated."""
        self._cure = cure
        self.address = address
        self.calls = DriverCalls()  # of handlers' transactions, which have limits of their own
        self._limit = limit
        self.pooled = address.pooler == "on"  # there is a pooler between us and the server
        self.version = 0
        self._sql = load("server", address.schema)
        self._quick = Pool(partial(self._session, _ON_INDEXES), QUICK)
        self._turns = Pool(partial(self._session, _ON_INDEXES), TURNS)
        self._plain = Pool(partial(self._session, {}), PLAIN)
        self._transactions = Pool(self._for_handlers, TRANSACTIONS)
        self._pools = (self._quick, self._turns, self._plain, self._transactions)

    # -- life ----------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Check the server, so that what is wrong is reported at once and in its words."""
        try:
            connection = await self.connect()
            try:
                late = asyncio.get_running_loop().call_later(CONNECT_WITHIN, hang_up, connection)
                cursor = await connection.execute(self._sql["look"], prepare=False)
                late.cancel()
                ((backend, encoding, read_only, standby),) = await cursor.fetchall()
                self.version = connection.info.server_version
                if self.address.pooler == "auto":
                    self.pooled = backend != connection.info.backend_pid
            finally:
                await connection.close()
        except (psycopg.Error, OSError) as error:
            raise explain_connecting(error, str(self.address)) from error
        self._check(encoding, read_only, standby)

    def _check(self, encoding: str, read_only: bool, standby: bool) -> None:
        if self.version < OLDEST:
            raise StoreMisconfigured(
                f"{self.address}: this server is PostgreSQL {self.version // 10000}; Perdure needs 13 or newer"
            )
        if encoding != "UTF8":
            raise StoreMisconfigured(
                f"{self.address}: the database is encoded in {encoding}, which cannot hold every text; "
                "use one made with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )
        if standby or read_only:
            why = "it is a replica" if standby else "default_transaction_read_only is on for this role or database"
            raise StoreError(f"{self.address}: this server takes no writes ({why}); use the address of the primary")

    async def close(self) -> None:
        await asyncio.gather(*(pool.close(CLOSE_WITHIN) for pool in self._pools))

    def hang_up(self) -> None:
        """Give up all connections and what runs on them: the next caller opens a new one."""
        for pool in self._pools:
            pool.hang_up()

    async def connect(self, kind: type[Connection] = AsyncConnection) -> Connection:
        """A connection beside the pools."""
        within = float(self.address.given.get("connect_timeout") or CONNECT_WITHIN)
        hosts = 1 + self.address.dsn.count(",")
        async with asyncio.timeout(hosts * within + 5.0):
            return await kind.connect(self.address.dsn, autocommit=True, **self.address.defaults)

    # -- work ----------------------------------------------------------------------------------------
    async def run_indexed(self, work: Work[T], *, repeat: bool = False, retry_for: float = PATIENCE) -> T:
        """Run work that the queue lives on. With `repeat`, it is run again after a broken connection."""
        return await self._run_with_cures(self._quick, work, ANSWER_WITHIN["quick"], retry_for if repeat else 0.0)

    async def run_limited(self, work: Work[T]) -> T:
        """Run work for which all take turns, on connections that keep its plans."""
        if self.pooled:  # nobody keeps plans there, and connections are few
            return await self.run_indexed(work)
        try:
            return await self._run_with_cures(self._turns, work, ANSWER_WITHIN["quick"], 0.0)
        except StoreError as error:
            if error.__cause__ is None or state_of(error.__cause__) != FULL_HOUSE:
                raise
            return await self.run_indexed(work)  # no connection left: on one of those that are there

    async def run_default(self, work: Work[T], *, repeat: bool = True) -> T:
        """Run other work."""
        return await self._run_with_cures(self._plain, work, ANSWER_WITHIN["plain"], PATIENCE if repeat else 0.0)

    async def directly(self, work: Work[T]) -> T:
        """Run other work that needs no cure: it is one itself, or the caller's values are all that can be wrong."""
        return await self._run_with_cures(self._plain, work, ANSWER_WITHIN["plain"], PATIENCE, None)

    async def lend(self) -> Connection:
        """A connection for a handler's transaction; give it back."""
        try:
            return await self._transactions.take(TAKE_WITHIN, self._limit)
        except TimeoutError as error:
            busy = f"all {TRANSACTIONS} connections for transactions have been in use for {TAKE_WITHIN:g} s"
            raise Unreached(f"{self.address}: {busy}").at(self.address) from error
        except (psycopg.Error, OSError) as error:
            raise explain(error, str(self.address)) from error

    async def give_back(self, connection: Connection) -> None:
        self._transactions.give(connection)

    async def _run_with_cures(
        self, pool: Pool, work: Work[T], within: float, retry_for: float, cure: Cure | EllipsisType | None = ...
    ) -> T:
        cure = self._cure if isinstance(cure, EllipsisType) else cure
        cured = 0
        while True:
            try:
                return await self._run_with_retries(pool, work, within, retry_for)
            except Flawed as flawed:
                cured += 1
                if cure is None or cured > CURES or not await cure(flawed):
                    raise
            except (psycopg.Error, msgspec.MsgspecError, ValueError, OverflowError) as error:
                if not is_misread(error):
                    raise
                cured += 1
                if cure is None or cured > CURES or not await cure(error):
                    raise explain(error, str(self.address)) from error

    async def _run_with_retries(self, pool: Pool, work: Work[T], within: float, retry_for: float) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = began + min(retry_for, self._limit)
        tries = 0
        while True:
            try:
                return await self._run_once(pool, work, min(within, began + self._limit - loop.time()))
            except (psycopg.Error, OSError) as error:
                tries += 1
                if is_misread(error):
                    raise
                if state_of(error) == READ_ONLY:
                    pool.forget()  # the server became a replica: the primary is elsewhere
                if is_conflict(error) and tries < CONFLICTS:
                    await _pause_before_retry(tries)
                elif is_broken(error) and loop.time() < until:
                    await asyncio.sleep(random.uniform(0.05, min(2.0, 0.1 * 2**tries)))
                else:
                    raise explain(error, str(self.address)) from error

    async def _run_once(self, pool: Pool, work: Work[T], within: float) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        connection = await pool.take(min(TAKE_WITHIN, within), within)
        late = loop.call_at(until, self._give_up, connection)
        running = loop.create_task(work(connection))
        running.add_done_callback(partial(_end_work, pool, connection, late))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                late = loop.call_later(SETTLE_WITHIN, self._give_up, connection)
                running.add_done_callback(lambda _: late.cancel())
            raise

    def _give_up(self, connection: Connection) -> None:
        """Nobody answers there. Those that lie idle may lead nowhere as well."""
        hang_up(connection)
        for pool in self._pools:
            pool.forget()

    # -- connections ---------------------------------------------------------------------------------
    async def _session(self, planning: Mapping[str, str]) -> Connection:
        session = await self.connect(Session)
        assert isinstance(session, Session)
        settings = {**_OURS, **planning}
        if self.pooled:
            session.prepare_threshold = None
            session.first = self._setting_statement(planning, local=True) if planning else None
        else:
            session.prepare_threshold = 0 if planning else 2
            if self.version >= 140000:
                # a statement that waits for a lock notices that its client is gone
                settings["client_connection_check_interval"] = "10s"
            await self._run_setting(session, self._setting_statement(settings, local=False))
        if planning:
            await self._run_setting(session, (self._sql["widen"], {"bytes": ANSWER_BYTES}))
        _load_uuids_as_text(session.adapters)
        return session

    async def _for_handlers(self) -> Connection:
        connection = await self.connect()
        if self.pooled:
            connection.prepare_threshold = None
        else:
            await self._run_setting(connection, self._setting_statement(_OURS, local=False))
        _load_uuids_as_text(connection.adapters)
        return connection

    async def _run_setting(self, connection: Connection, setting: Statement) -> None:
        late = asyncio.get_running_loop().call_later(CONNECT_WITHIN, hang_up, connection)
        try:
            await connection.execute(*setting, prepare=False)
        except BaseException:
            await connection.close()
            raise
        finally:
            late.cancel()

    def _setting_statement(self, settings: Mapping[str, str], *, local: bool) -> Statement:
        return self._sql["set"], {"names": list(settings), "values": list(settings.values()), "local": local}


def _end_work(pool: Pool, connection: Connection, late: asyncio.TimerHandle, running: asyncio.Task[Any]) -> None:
    late.cancel()
    pool.give(connection)
    if not running.cancelled():
        running.exception()  # its caller may be gone


def _load_uuids_as_text(adapters: AdaptersMap) -> None:
    adapters.register_loader("uuid", TextLoader)


async def pipeline(connection: Connection, statements: Sequence[Statement]) -> list[Cursor]:
    """Run statements in one round trip; outside a transaction they are one by themselves."""
    first = connection.first if isinstance(connection, Session) else None
    if first is not None and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        return (await _run_pipeline(connection, [first, *statements]))[1:]
    return await _run_pipeline(connection, statements)


async def _run_pipeline(connection: Connection, statements: Sequence[Statement]) -> list[Cursor]:
    if len(statements) == 1:
        return [await connection.execute(*statements[0])]
    async with connection.pipeline():
        return [await connection.execute(*statement) for statement in statements]


async def through_conflicts(transaction: Callable[[], Awaitable[T]]) -> T:
    """Repeat a transaction that others stood in the way of. For parts of a work that must not be repeated as a whole."""
    tries = 0
    while True:
        try:
            return await transaction()
        except psycopg.Error as error:
            tries += 1
            if not is_conflict(error) or tries >= CONFLICTS:
                raise
        await _pause_before_retry(tries)


async def _pause_before_retry(tries: int) -> None:
    await asyncio.sleep(random.uniform(0, 0.005 * tries))
