"""The open transactions of our clients, as the server lists them: wait for those under way, end abandoned ones.

A transaction reads a snapshot. A claim that began before its queue was paused does not see the pause, and takes jobs when
it commits. So `pause` returns only when every transaction that began before it has ended.

A transaction belongs to a session, not to a connection. When a process dies before its commit, the server keeps what the
process has written for up to a minute, and every other writer of these documents meets a conflict. (A supervisor ends the
transactions of its runners. Where a worker has no supervisor, or the whole machine is gone, nothing ends them.)

So a client that has met conflicts for a while asks the server for idle transactions. It ends a transaction of our clients
that has lost its connection, or has been idle for longer than any of ours may be. Nothing of that transaction was
committed: if its process is still alive, it gets an error and begins again. A user may list and end the sessions of his own
clients without any further right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from perdure.core.clock import SECOND
from perdure.storage.driver_calls import DriverCalls, GivenUp

from ..reading.records import Document

if TYPE_CHECKING:
    from .server import Server

LOOK_AGAIN = 0.01  # seconds
LONGEST = 10.0  # seconds; a transaction that nobody ends is ended by others before that
APPNAME = "perdure"
EVERY = 0.5  # seconds between two looks
NOT_ALLOWED = 60.0  # the same, where the server does not tell
IN_THE_WAY = SECOND // 10  # microseconds that a transaction lies idle which may be abandoned
WITHOUT_CONNECTION = SECOND // 2  # that such a one may
AT_ALL = 6 * SECOND  # the same, of one that has its connection; a handler's may last for five seconds
_LISTED = {"allUsers": False, "idleSessions": True}
_IDLE = ("type", "host", "connectionId", "appName", "lsid", "transaction.timeInactiveMicros")


async def _list_operations(
    client: AsyncMongoClient[Document],
    fields: Collection[str],
    *,
    where: Document | None = None,
    connections: bool = False,
) -> list[Document]:
    """This user's operations and idle sessions, and idle connections if asked for."""
    stages: list[Document] = [
        {"$currentOp": _LISTED | {"idleConnections": connections}},
        {"$match": where or {}},
        {"$project": dict.fromkeys(fields, 1)},
    ]
    async with await client.admin.aggregate(stages) as cursor:
        return await cursor.to_list()


async def wait_for_earlier_transactions(server: Server) -> None:
    """Return when every transaction of our clients that is open now has ended. Where the server does not list its
    transactions, this cannot wait."""
    names = [APPNAME, server.client.options.pool_options.appname]
    ours = {"appName": {"$in": names}, "transaction.timeOpenMicros": {"$gt": 0}}
    began = monotonic()
    while (asked := monotonic()) - began < LONGEST:
        try:
            listed = await server.calls.run(_list_operations(server.client, ["transaction.timeOpenMicros"], where=ours))
        except (PyMongoError, GivenUp):
            return
        if not any(one["transaction"]["timeOpenMicros"] > (asked - began) * SECOND for one in listed):
            return
        await asyncio.sleep(LOOK_AGAIN)


class Abandoned:
    """Ends abandoned transactions, through one client."""

    def __init__(self, client: AsyncMongoClient[Document], calls: DriverCalls, *, ours: bool) -> None:
        """`ours`: the server knows our clients by their application name."""
        self._client = client
        self._calls = calls
        self._ours = ours
        self._next_look = 0.0

    async def end(self) -> bool:
        """End them, unless that was tried just now. True: the server lists none that is left."""
        if not self._ours or monotonic() < self._next_look:
            return False
        self._next_look = monotonic() + EVERY
        try:
            return await self._calls.run(self._end())
        except OperationFailure:
            self._next_look = monotonic() + NOT_ALLOWED
        except (PyMongoError, GivenUp):
            pass
        return False

    async def _end(self) -> bool:
        found = abandoned_in(await _list_operations(self._client, _IDLE, connections=True))
        if found.abandoned:
            await self._client.admin.command("killSessions", [{"id": id} for id in found.abandoned])
        return not found.unsure


class Found(NamedTuple):
    """Ids of sessions: whose transactions are abandoned, and whose may be."""

    abandoned: list[Any]
    unsure: list[Any]


def abandoned_in(listed: list[Document]) -> Found:
    """Which of our transactions in the server's list are abandoned."""
    connected = {_Connection.of(one) for one in listed if one.get("type") != "idleSession"}
    found = Found([], [])
    for one in listed:
        idle = one.get("transaction", {}).get("timeInactiveMicros", 0)
        if one.get("type") != "idleSession" or one.get("appName") != APPNAME or "lsid" not in one:
            continue
        if idle > (AT_ALL if _Connection.of(one) in connected else WITHOUT_CONNECTION):
            found.abandoned.append(one["lsid"]["id"])
        elif idle > IN_THE_WAY:
            found.unsure.append(one["lsid"]["id"])
    return found


class _Connection(NamedTuple):
    host: str | None
    number: int | None

    @classmethod
    def of(cls, listed: Document) -> _Connection:
        return cls(listed.get("host"), listed.get("connectionId"))
