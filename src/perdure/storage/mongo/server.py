"""The way to the server: one client per event loop, reads, and transactions that are repeated when they must be.

Every write is a transaction, acknowledged by a majority and its journals. MongoDB never lets a transaction wait for another:
who comes second to a document is aborted at once with a write conflict. Nothing of it was done, so it is repeated with what
is true then, after a pause that is drawn anew each time. A commit whose answer was lost is asked for again, on the same
session: the server knows whether it took place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC
from time import monotonic
from typing import Any, TypeVar

from bson.binary import UUID_SUBTYPE, Binary
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from perdure.clock import instant_of
from perdure.job import Hold

from .abandoned import APPNAME, Abandoned
from .address import MongoAddress
from .documents import Document
from .faults import explained, is_broken, is_conflict, is_transient, is_unknown_commit
from .steps import PREFIX, Steps, WouldWrite, awaited, only_reading

T = TypeVar("T")

MAJORITY = WriteConcern("majority", j=True, wtimeout=10_000)
LOCAL, COMMITTED = ReadConcern("local"), ReadConcern("majority")
# broken characters that somebody wrote into a document must not hide the others
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(unicode_decode_error_handler="replace")
PATIENCE = 20.0  # seconds that a verb is repeated before it gives up
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
LONG = 0.25  # seconds of conflicts after which somebody may be in the way who will never be out of it
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


class Patience:
    """How long to go on trying, and how to pause in between."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._began = asyncio.get_running_loop().time()
        self._until = self._began + seconds
        self._pause = FIRST_PAUSE

    @property
    def over(self) -> bool:
        return asyncio.get_running_loop().time() >= self._until

    @property
    def long(self) -> bool:
        return asyncio.get_running_loop().time() >= self._began + LONG

    async def pause(self) -> None:
        await asyncio.sleep(self._pause * random.random())
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


class Server:
    """One event loop's connections to the server."""

    def __init__(self, address: MongoAddress) -> None:
        self.address = address
        self.patience = PATIENCE
        self.sessions: set[str] = set()  # by which transactions were made; the driver uses a few again and again
        self._made = monotonic()
        options = {name: value for name, value in DEFAULTS.items() if name not in address.options}
        try:
            self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(address.url, **options)  # type: ignore[arg-type]
        except PyMongoError as error:
            raise explained(error, address) from error
        self.abandoned = Abandoned(self.client, ours="appname" not in address.options)
        database = self.client.get_database(
            address.database, codec_options=CODEC, read_preference=ReadPreference.PRIMARY, write_concern=MAJORITY
        )
        self.database = database.with_options(read_concern=LOCAL)
        self.committed = database.with_options(read_concern=COMMITTED)
        self.quick = database.with_options(write_concern=WriteConcern(1))

    async def close(self) -> None:
        # the driver forgets the sockets of its monitors when it is closed while they still connect
        await asyncio.sleep(max(0.0, self._made + SETTLED - monotonic()))
        await self.client.close()

    async def hello(self) -> dict[str, Any]:
        """What the server says about itself; of a replica set, the primary. A secondary answers only for a set that may have
        none: the driver may have met it first, and then the primary is looked for."""
        with _words(self.address):
            told: dict[str, Any] = await self.client.admin.command(
                "hello", read_preference=ReadPreference.PRIMARY_PREFERRED
            )
            if "setName" in told and not told.get("isWritablePrimary"):
                told = await self.client.admin.command("hello")
            return told

    async def now(self) -> int:
        """The server's clock, cut to milliseconds."""
        with _words(self.address):
            told = await self.client.admin.command("hello")
        return instant_of(told["localTime"].replace(tzinfo=UTC))

    async def jobs(self) -> int:
        """About how many jobs there are."""
        with _words(self.address):
            counted: int = await self.database[f"{PREFIX}jobs"].estimated_document_count()
            return counted

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        """Read what is committed. Each step by itself; steps that must agree belong into a transaction."""
        patience = Patience(self.patience)
        while True:
            try:
                with _cancellable():
                    # a session of its own: a long answer comes in several parts, which belong to the session that asked
                    async with self.client.start_session(causal_consistency=False) as session:
                        return await awaited(steps(), self.committed, session)
            except PyMongoError as error:
                if not is_broken(error) or patience.over:
                    raise explained(error, self.address) from error
            await patience.pause()

    async def write(
        self, steps: Callable[[], Steps[T]], *, patience: float | None = None, through_conflicts: bool = True
    ) -> T:
        """Take the steps in one transaction, again and again until it is committed. Without `through_conflicts` a conflict
        is raised at once, as Conflict."""
        trying = Patience(self.patience if patience is None else patience)
        while True:
            try:
                with _cancellable():
                    async with self.begun() as session:
                        answer = await awaited(steps(), self.database, session)
                        await self.commit(session, trying)
                        return answer
            except PyMongoError as error:
                again = is_transient(error) or is_broken(error)
                if not again or trying.over or (is_conflict(error) and not through_conflicts):
                    raise explained(error, self.address) from error
                if is_conflict(error) and trying.long:
                    await self.abandoned.end()
            await trying.pause()

    async def replace(self, collection: str, id: str, document: Document) -> None:
        """Write one document, whatever was there. By itself it needs no transaction: half the questions to the server."""
        patience = Patience(self.patience)
        while True:
            try:
                with _cancellable():
                    await self.database[PREFIX + collection].replace_one({"_id": id}, document, upsert=True)
                    return
            except PyMongoError as error:
                if not is_broken(error) or patience.over:
                    raise explained(error, self.address) from error
            await patience.pause()

    async def look_first(self, steps: Callable[[], Steps[T]]) -> T:
        """Take the steps without a transaction, if there is nothing to write after all; else in one."""
        try:
            return await self.read(lambda: only_reading(steps()))
        except WouldWrite:
            return await self.write(steps)

    async def note_at_once(self, hold: Hold, now: int) -> None:
        """Note that the handler of a held job has started, without waiting for the disk: it only helps to find out later who
        ran when a worker died."""
        held = {"_id": hold.id, "state": "running", "attempt": hold.attempt, "stamp": hold.stamp, "started_at": None}
        with suppress(PyMongoError):
            await self.quick[f"{PREFIX}jobs"].update_one(held, {"$set": {"started_at": now}})

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Any]:
        """A session in a transaction, which is undone unless it is committed."""
        async with self.client.start_session(causal_consistency=False) as session:
            await session.start_transaction(LOCAL, MAJORITY, ReadPreference.PRIMARY)
            self.sessions.add(bytes(session.session_id["id"]).hex())
            yield session

    async def end_sessions(self, sessions: Collection[str]) -> None:
        """Undo the transactions of a process that is dead. The server would keep them, and what they have locked, for a
        minute: they belong to a session, not to a connection."""
        with _words(self.address):
            ids = [{"id": Binary(bytes.fromhex(each), UUID_SUBTYPE)} for each in sessions]
            await self.client.admin.command("killSessions", ids)

    async def commit(self, session: Any, patience: Patience) -> None:
        while True:
            try:
                await session.commit_transaction()
                return
            except PyMongoError as error:
                if not is_unknown_commit(error) or patience.over:
                    raise
            await patience.pause()


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise a cancellation that came inside and was lost: on Python 3.11 the driver's waiting may swallow one."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class _words:
    """Errors of the driver inside are told in ours."""

    def __init__(self, address: MongoAddress) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, PyMongoError):
            raise explained(error, self._address) from error
