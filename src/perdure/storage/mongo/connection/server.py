"""The connection to the server: one client per event loop, reads, and transactions that are repeated when they must be.

Every write is a transaction that a majority and its journals acknowledge. MongoDB never lets a transaction wait for
another: it aborts the second writer of a document with a write conflict. Nothing was committed then, so the transaction is
repeated after a random pause. A commit whose answer was lost is sent again on the same session: the server knows whether it
took place. A server that has restarted may not know. Then the operations are repeated if that does no harm; else the store
reads back first whether they were committed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC
from time import monotonic
from typing import Any, TypeVar

from bson.binary import UUID_SUBTYPE, Binary
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, monitoring
from pymongo.errors import AutoReconnect, ConfigurationError, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import split_options
from pymongo.write_concern import WriteConcern

from perdure.core.clock import instant_of
from perdure.core.record import Hold
from perdure.errors import StoreMisconfigured
from perdure.storage.driver_calls import DriverCalls, GivenUp

from ..address import MongoAddress
from ..reading.records import Document
from .errors import error_for, has_no_sessions, is_broken, is_conflict, is_forgotten, is_transient, is_unknown_commit
from .operations import PREFIX, Steps, WouldWrite, read_only, run_async
from .server_transactions import APPNAME, Abandoned

T = TypeVar("T")
_log = logging.getLogger("perdure")

MAJORITY = WriteConcern("majority", j=True, wtimeout=10_000)
LOCAL, COMMITTED = ReadConcern("local"), ReadConcern("majority")
# bytes that are no UTF-8 must not hide other documents; lone surrogates stand for them, which no text of ours has
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(unicode_decode_error_handler="surrogateescape")
RETRY_FOR = 20.0  # seconds that a verb is repeated before it gives up
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
LONG = 0.25  # seconds of conflicts after which somebody may be in the way who will never be out of it
CALLS_WITHIN, CLOSE_WITHIN = 2.0, 1.0  # seconds that calls, and then the client, get to end when the store is closed
TROUBLE = (PyMongoError, GivenUp)  # what a call raises when something is wrong with the driver or the server
SETTLED = 0.1  # seconds after which the driver has made its first connections
# the driver's monitor asks every so often and hangs up on all connections when nobody answers it for the sum of the first
# two; one that lay idle may have been forgotten on its way while the monitor's own lives. No socketTimeoutMS: with it the
# driver may lose a cancellation on Python 3.11, and long listings end. The monitor polls: a standing stream, and a second
# connection that measures round trips beside it, cost an idle worker some of its time; after an error it looks at once
DEFAULTS = {
    "heartbeatfrequencyms": 4_000,
    "connecttimeoutms": 4_000,
    "serverselectiontimeoutms": 5_000,
    "maxidletimems": 60_000,
    "servermonitoringmode": "poll",
    "appname": APPNAME,
}


class Retries:
    """How long to repeat a call, and the pauses in between."""

    def __init__(self, seconds: float = RETRY_FOR) -> None:
        self._began = asyncio.get_running_loop().time()
        self._until = self._began + seconds
        self._pause = FIRST_PAUSE
        self.commit_sent = False  # in this try

    @property
    def over(self) -> bool:
        return asyncio.get_running_loop().time() >= self._until

    @property
    def long(self) -> bool:
        return asyncio.get_running_loop().time() >= self._began + LONG

    async def pause(self) -> None:
        await asyncio.sleep(self._pause * random.random())
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


class LostServers(monitoring.ServerListener):
    """Remembers when the driver last found a server gone."""

    def __init__(self) -> None:
        self.at = float("-inf")

    def opened(self, event: Any) -> None:
        pass

    def description_changed(self, event: Any) -> None:
        if not event.new_description.is_server_type_known:
            self.at = monotonic()

    def closed(self, event: Any) -> None:
        pass


class Server:
    """One event loop's connections to the server."""

    def __init__(self, address: MongoAddress, limit: float, replaced: Callable[[], None] = lambda: None) -> None:
        """`limit`: seconds after which a call must have returned, or the client is replaced; then `replaced` is called."""
        self.address = address
        self.retry_for = RETRY_FOR
        self.sessions: set[str] = set()  # by which transactions were made; the driver uses a few again and again
        self._limit = limit
        self._replaced = replaced
        self._closing: set[asyncio.Task[None]] = set()
        self.lost_servers = LostServers()
        self._connect()

    def _connect(self) -> None:
        self._made = monotonic()
        options = {name: value for name, value in DEFAULTS.items() if name not in self.address.options}
        options["event_listeners"] = [self.lost_servers]
        with refuse_bad_options(self.address):
            self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(self.address.url, **options)  # type: ignore[arg-type]
        self.calls = DriverCalls(self._limit, self.replace_client)
        self.abandoned = Abandoned(self.client, self.calls, ours="appname" not in self.address.options)
        database = self.client.get_database(
            self.address.database, codec_options=CODEC, read_preference=ReadPreference.PRIMARY, write_concern=MAJORITY
        )
        self.database = database.with_options(read_concern=LOCAL)
        self.committed = database.with_options(read_concern=COMMITTED)
        self.quick = database.with_options(write_concern=WriteConcern(1))

    def replace_client(self) -> None:
        """Give up the client and its calls, and continue with a new one: a lock of the old one may be lost for good."""
        _log.warning("%s: calls do not end; the client of MongoDB is replaced by a new one", self.address)
        calls = self.calls
        self._use_new_client()
        calls.give_up()

    def _use_new_client(self) -> None:
        old, calls = self.client, self.calls
        self._connect()
        closing = asyncio.get_running_loop().create_task(_close_after(calls, old))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._replaced()

    async def close(self) -> None:
        """Close the client. Calls that still run are given up."""
        self.calls.give_up()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_WITHIN)
        # the driver forgets the sockets of its monitors when it is closed while they still connect
        await asyncio.sleep(max(0.0, self._made + SETTLED - monotonic()))
        await _close_client(self.client)

    async def hello(self) -> dict[str, Any]:
        """What the server reports about itself; in a replica set, the primary. The driver may have found a secondary first;
        then the primary is asked. A secondary answers only for a set that may have no primary."""
        with own_errors(self.address):
            told = await self.command("hello", read_preference=ReadPreference.PRIMARY_PREFERRED)
            if "setName" in told and not told.get("isWritablePrimary"):
                told = await self.command("hello")
            return told

    async def command(self, *words: Any, **options: Any) -> dict[str, Any]:
        """Run a command of the admin database. Errors are the driver's own."""
        told: dict[str, Any] = await self.calls.run(self.client.admin.command(*words, **options))
        return told

    async def now(self) -> int:
        """The server's clock in milliseconds. A connection that broke is tried once more: the callers of enqueue and claim
        must not get an error that one repetition avoids."""
        with own_errors(self.address):
            try:
                told = await self.command("hello")
            except AutoReconnect as error:
                if isinstance(error, ServerSelectionTimeoutError):
                    raise
                told = await self.command("hello")
        return instant_of(told["localTime"].replace(tzinfo=UTC))

    async def jobs(self) -> int:
        """About how many jobs there are."""
        with own_errors(self.address):
            return await self.calls.run(self.database[f"{PREFIX}jobs"].estimated_document_count())

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        """Read committed data. Each step sees its own snapshot; steps that must agree belong into a transaction."""
        return await self._repeat_while_broken(lambda: self._read(steps()))

    async def _read(self, steps: Steps[T]) -> T:
        # a session of its own: a long answer comes in several parts, which belong to the session that asked
        async with self._session() as session:
            return await run_async(steps, self.committed, session)

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        retry_for: float | None = None,
        through_conflicts: bool = True,
        read_back: Callable[[], Steps[T | None]] | None = None,
    ) -> T:
        """Run the operations in one transaction, repeated until it is committed. Without `through_conflicts` a conflict is
        raised at once, as Conflict. `read_back`: for operations that must not run twice; returns their answer if they were
        committed, else None."""
        trying = Retries(self.retry_for if retry_for is None else retry_for)
        while True:
            try:
                return await self.calls.run(self._write(steps(), trying))
            except TROUBLE as error:
                forgotten = is_forgotten(error) and trying.commit_sent
                unknown = isinstance(error, GivenUp) and trying.commit_sent
                again = is_transient(error) or forgotten or (is_broken(error) and not unknown)
                if not again or trying.over or (is_conflict(error) and not through_conflicts):
                    raise error_for(error, self.address) from error
                if is_conflict(error) and trying.long:
                    await self.abandoned.end()
                # in a transaction of its own: what it reads is on a majority when it is committed
                if (
                    forgotten
                    and read_back is not None
                    and (committed_answer := await self.write(read_back)) is not None
                ):
                    return committed_answer
            await trying.pause()

    async def _write(self, steps: Steps[T], trying: Retries) -> T:
        trying.commit_sent = False
        async with self.begin() as session:
            answer = await run_async(steps, self.database, session)
            await self.commit(session, trying)
            return answer

    async def replace(self, collection: str, id: str, document: Document) -> None:
        """Write one document, whatever was there. It needs no transaction, which saves half of the round trips."""

        async def replace() -> None:
            await self.database[PREFIX + collection].replace_one({"_id": id}, document, upsert=True)

        await self._repeat_while_broken(replace)

    async def _repeat_while_broken(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call that may be repeated, until the connection holds."""
        retries = Retries(self.retry_for)
        while True:
            try:
                return await self.calls.run(call())
            except TROUBLE as error:
                if not is_broken(error) or retries.over:
                    raise error_for(error, self.address) from error
            await retries.pause()

    async def read_then_write(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the operations without a transaction if they have nothing to write, else in one."""
        try:
            return await self.read(lambda: read_only(steps()))
        except WouldWrite:
            return await self.write(steps)

    async def write_start_now(self, hold: Hold, now: int) -> None:
        """Write that the handler of a held job has started, without waiting for the disk: it only helps to find out later
        which jobs ran when a worker died."""
        held = {"_id": hold.id, "state": "running", "attempt": hold.attempt, "stamp": hold.stamp, "started_at": None}
        with suppress(*TROUBLE):
            await self.calls.run(self.quick[f"{PREFIX}jobs"].update_one(held, {"$set": {"started_at": now}}))

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        """A session in a transaction, which is undone unless it is committed."""
        async with self._session() as session:
            await session.start_transaction(LOCAL, MAJORITY, ReadPreference.PRIMARY)
            self.sessions.add(bytes(session.session_id["id"]).hex())
            yield session

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """A session of the driver. If its connection can have none, the client is replaced.

        A server that starts has no sessions for a moment. The driver asks for them when it makes a connection, keeps that
        answer, and keeps the connection in its pool: every later call that gets this connection fails.
        """
        client = self.client
        try:
            async with client.start_session(causal_consistency=False) as session:
                yield session
        except ConfigurationError as error:
            if has_no_sessions(error) and client is self.client:
                _log.info("%s: a connection was made before the server had sessions; making new ones", self.address)
                self._use_new_client()
            raise

    async def end_sessions(self, sessions: Collection[str]) -> None:
        """Undo the transactions of a dead process. They belong to a session, not to a connection, so the server would keep
        them and their locks for a minute."""
        with own_errors(self.address):
            ids = [{"id": Binary(bytes.fromhex(each), UUID_SUBTYPE)} for each in sessions]
            await self.command("killSessions", ids)

    async def commit(self, session: Any, retries: Retries) -> None:
        retries.commit_sent = True
        while True:
            try:
                await session.commit_transaction()
                return
            except PyMongoError as error:
                if not is_unknown_commit(error) or retries.over:
                    raise
            await retries.pause()


async def _close_after(calls: DriverCalls, client: AsyncMongoClient[dict[str, Any]]) -> None:
    """Close a client that is no longer used, once its calls have ended. Calls that take too long are given up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CALLS_WITHIN):
            await calls.finish()
    calls.give_up()
    await _close_client(client)


async def _close_client(client: AsyncMongoClient[dict[str, Any]]) -> None:
    """Close a client within a bounded time."""
    closing = asyncio.get_running_loop().create_task(client.close())
    await asyncio.wait([closing], timeout=CLOSE_WITHIN)
    if not closing.done():
        closing.cancel()
    elif not closing.cancelled():
        closing.exception()


class own_errors:
    """Turns errors of the driver inside into ours."""

    def __init__(self, address: MongoAddress) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, TROUBLE):
            raise error_for(error, self._address) from error


@contextmanager
def refuse_bad_options(address: MongoAddress) -> Iterator[None]:
    """For the creation of a client, which connects to no server yet: any error is a mistake in the URL. Options that the
    driver would ignore with a warning are refused too."""
    option = ""
    try:
        for option in filter(None, address.url.partition("?")[2].split("&")):
            split_options(option, validate=True, warn=False)
        option = ""
        yield
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        where = f"option {option.partition('=')[0]} of the URL" if option else "the URL is not understood"
        raise StoreMisconfigured(f"{address}: {where}: {error}") from error
