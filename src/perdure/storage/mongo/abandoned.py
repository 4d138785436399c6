"""Transactions that nobody is going to end.

A transaction belongs to a session, not to a connection. When a process dies before its commit, the server keeps what it has
written for up to a minute, and whoever wants to write there meets a conflict. (A supervisor ends those of its runners; where
a worker has none, or the whole machine is gone, nobody does.)

So who has met conflicts for a while asks the server what lies idle. A transaction of a client of ours that has lost its
connection, or that has lain idle for longer than any of ours may, is ended. Nothing of it was done: if its owner lives after
all, he is told so and begins again. A user may see and end the sessions of his own clients, without any further right.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, NamedTuple

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from perdure.clock import SECOND
from perdure.storage.driver_calls import DriverCalls, GivenUp

APPNAME = "perdure"
EVERY = 0.5  # seconds between two looks
NOT_ALLOWED = 60.0  # the same, where the server does not tell
IN_THE_WAY = SECOND // 10  # microseconds that a transaction lies idle which may be abandoned
WITHOUT_CONNECTION = SECOND // 2  # that such a one may
AT_ALL = 6 * SECOND  # the same, of one that has its connection; a handler's may last for five seconds
_LISTED: list[dict[str, Any]] = [
    {"$currentOp": {"allUsers": False, "idleSessions": True, "idleConnections": True}},
    {
        "$project": dict.fromkeys(
            ("type", "host", "connectionId", "appName", "lsid", "transaction.timeInactiveMicros"), 1
        )
    },
]


class Abandoned:
    """Looks for them, through one client."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], calls: DriverCalls, *, ours: bool) -> None:
        """`ours`: the server knows our clients by their name."""
        self._client = client
        self._calls = calls
        self._ours = ours
        self._next_look = 0.0

    async def end(self) -> bool:
        """End them, unless that was tried just now. True: the server tells of none that is left."""
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
        async with await self._client.admin.aggregate(_LISTED) as cursor:
            found = found_in(await cursor.to_list())
        if found.abandoned:
            await self._client.admin.command("killSessions", [{"id": id} for id in found.abandoned])
        return not found.unsure


class Found(NamedTuple):
    """Ids of sessions: whose transactions are abandoned, and whose may be."""

    abandoned: list[Any]
    unsure: list[Any]


def found_in(listed: list[dict[str, Any]]) -> Found:
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
    def of(cls, listed: dict[str, Any]) -> _Connection:
        return cls(listed.get("host"), listed.get("connectionId"))
