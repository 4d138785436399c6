"""Waits for transactions that are under way.

A transaction reads a snapshot. A claim that began before its queue was paused does not see the pause, and takes jobs
when it commits. So `pause` returns only when every transaction that began before it has ended.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from perdure.clock import SECOND
from perdure.storage.driver_calls import GivenUp

from . import abandoned

if TYPE_CHECKING:
    from .server import Server

LOOK_AGAIN = 0.01  # seconds
LONGEST = 10.0  # seconds; a transaction that nobody ends is ended by others before that


async def wait_for_earlier_transactions(server: Server) -> None:
    """Return when every transaction of our clients that is open now has ended. Where the server does not list its
    transactions, this cannot wait."""
    names = [abandoned.APPNAME, server.client.options.pool_options.appname]
    began = monotonic()
    while (asked := monotonic()) - began < LONGEST:
        try:
            listed = await server.calls.run(_list_transactions(server, names))
        except (PyMongoError, GivenUp):
            return
        if not any(one["transaction"]["timeOpenMicros"] > (asked - began) * SECOND for one in listed):
            return
        await asyncio.sleep(LOOK_AGAIN)


async def _list_transactions(server: Server, names: list[str | None]) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": False, "idleSessions": True}},
        {"$match": {"appName": {"$in": names}, "transaction.timeOpenMicros": {"$gt": 0}}},
        {"$project": {"transaction.timeOpenMicros": 1}},
    ]
    async with await server.client.admin.aggregate(stages) as cursor:
        return await cursor.to_list()
