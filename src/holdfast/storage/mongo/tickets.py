"""How claimers keep out of each other's way.

MongoDB has no way to skip what another transaction is about to take: two claimers that read the same heads of lanes write
the same documents, and the second is aborted. Somebody always gets on, but the others' work is thrown away, the more the
more claimers there are. So whoever has met a conflict draws tickets for a while: before a claim it looks which jobs are the
best, and notes in one small document, beside any transaction, from where to where it is about to take. Jobs between the ends
of another's ticket are left to it. A ticket is given back after the commit; one whose claimer died is worth nothing after
some seconds.

Tickets only make conflicts rare. What is right is decided by the transactions. A lone claimer never draws one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from time import monotonic
from typing import Any

from pymongo.errors import PyMongoError

from holdfast.clock import SECOND
from holdfast.storage.contract import Claim

from .claim import Position, best_positions
from .server import Server

DRAWN_FOR = 30.0  # seconds after a conflict
WORTH = 10 * SECOND
FURTHER = 4  # times as many jobs are looked at as are wanted
TRIES = 8
_PLACE = {"_id": "claims"}
Ticket = dict[str, Any]


class Tickets:
    """The tickets of one claimer."""

    def __init__(self) -> None:
        self._until = 0.0

    def conflict(self) -> None:
        """A claim met another one."""
        self._until = monotonic() + DRAWN_FOR

    @asynccontextmanager
    async def drawn(self, server: Server, claim: Claim | None, now: int) -> AsyncIterator[list[str] | None]:
        """The jobs to take, for as long as the claim is under way; None: the best there are."""
        plain = claim is not None and claim.wants and not claim.wants[0].limited
        if claim is None or not plain or monotonic() >= self._until:
            yield None
            return
        ticket = token_hex(6)
        chosen = await _draw(server, ticket, claim, now)
        try:
            yield chosen
        finally:
            if chosen:
                await asyncio.shield(_give_back(server, ticket))


async def _draw(server: Server, ticket: str, claim: Claim, now: int) -> list[str] | None:
    """Look, choose, and note it if nobody else has noted anything meanwhile."""
    try:
        for _ in range(TRIES):
            noted = await server.quick["holdfast_meta"].find_one(_PLACE) or {"number": 0, "tickets": []}
            others = [each for each in noted["tickets"] if each["at"] > now - WORTH]
            seen = await server.read(lambda: best_positions(claim.wants[0], FURTHER))
            mine = _chosen(seen, others, claim.wants[0].limit)
            if not mine or await _noted(server, noted["number"], others, _ticket(ticket, mine, now)):
                return [id for _, _, id in mine]
    except PyMongoError:
        pass
    return None


def _chosen(seen: Sequence[Position], others: Sequence[Ticket], limit: int) -> list[Position]:
    taken = [(tuple(each["first"]), tuple(each["last"])) for each in others]
    return [one for one in seen if not any(first <= one <= last for first, last in taken)][:limit]


def _ticket(ticket: str, mine: Sequence[Position], now: int) -> Ticket:
    return {"ticket": ticket, "first": list(mine[0]), "last": list(mine[-1]), "at": now}


async def _noted(server: Server, number: int, others: Sequence[Ticket], mine: Ticket) -> bool:
    """Whether the document was still as we read it."""
    tickets = {"$set": {"tickets": [*others, mine]}, "$inc": {"number": 1}}
    meta = server.quick["holdfast_meta"]
    if number == 0:
        await meta.update_one(_PLACE, {"$setOnInsert": {"number": 0, "tickets": []}}, upsert=True)
    return bool((await meta.update_one({**_PLACE, "number": number}, tickets)).modified_count)


async def _give_back(server: Server, ticket: str) -> None:
    gone = {"$pull": {"tickets": {"ticket": ticket}}, "$inc": {"number": 1}}
    try:
        await server.quick["holdfast_meta"].update_one(_PLACE, gone)
    except PyMongoError:
        pass  # it will be worth nothing soon
