"""How claimers keep out of each other's way.

MongoDB has no way to skip what another transaction is about to take: two claimers that read the same heads of lanes write
the same documents, and the second is aborted. Somebody always gets on, but the others' work is thrown away, the more the
more claimers there are. So whoever has met a conflict draws tickets for a while: before a claim it looks which jobs are the
best, and notes in one small document, beside any transaction, from where to where it is about to take. Jobs between the ends
of another's ticket are left to it. A ticket is given back after the commit; one whose claimer died is worth nothing after
some seconds.

Tickets only make conflicts rare. What is right is decided by the transactions. A lone claimer never draws one.

A claimer that was killed before its commit has no ticket that is worth anything, but the server keeps its transaction, and
with it the best jobs. Who meets conflicts in spite of its ticket passes them by for some seconds, twice as many each time
and never more than half of what is there, so that the others are not held up. They are tried again later, or as soon as that
transaction was found abandoned, and ended (see `abandoned`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from perdure.core.clock import SECOND
from perdure.storage.contract import Claim, Want

from ..connection.errors import Conflict
from ..connection.server import TROUBLE, Server
from .claim import best_positions
from .claim_candidates import Position

RESERVE_FOR = 30.0  # seconds after a conflict
VALID_FOR = 10 * SECOND
FURTHER = 4  # times as many jobs are looked at as are wanted
SKIP_FOR = 5.0  # seconds that jobs are left alone which somebody unknown keeps
EXPECTED_CONFLICTS = 1  # conflicts in a row in spite of a ticket that need no such explanation
LOOK_AGAIN, LOOK_LATER = 20_000, 250_000  # microseconds
TRIES = 8
_PLACE = {"_id": "claims"}
Reservation = dict[str, Any]
Range = tuple[Position, Position]  # the first and the last


class _Reservation(msgspec.Struct):
    ticket: str
    first: Position
    last: Position
    at: int


class _Reservations(msgspec.Struct):
    number: int
    tickets: list[_Reservation]


class Skipped(NamedTuple):
    """Jobs that are left alone, from one position to another, until an instant."""

    first: Position
    last: Position
    jobs: int
    until: float


class ClaimReservations:
    """The tickets of one claimer."""

    def __init__(self) -> None:
        self._until = 0.0
        self._conflicts = 0  # conflicts in a row in spite of tickets
        self._skipped: list[Skipped] = []

    def conflict(self) -> None:
        """A claim met another one."""
        self._until = monotonic() + RESERVE_FOR

    @property
    def look_again(self) -> int:
        """Microseconds after which a claim that was left with less than it wanted may find more."""
        return LOOK_LATER if self._skipped else LOOK_AGAIN

    @asynccontextmanager
    async def reserve(
        self, server: Server, claim: Claim | None, now: int, many: bool = False
    ) -> AsyncIterator[list[str] | None]:
        """The jobs to take, for as long as the claim is under way; None: the best there are. `many`: whether there are
        probably very many lanes."""
        plain = claim is not None and claim.wants and not claim.wants[0].limited
        if claim is None or not plain or monotonic() >= self._until:
            yield None
            return
        ticket = token_hex(6)
        seen, mine = await self._choose_and_write(server, ticket, claim.wants[0], now, many)
        try:
            yield None if mine is None else [id for _, _, id in mine]
            self._conflicts = 0
        except Conflict:
            if mine:
                self._skip(seen, mine)
            raise
        finally:
            if mine:
                await _remove(server, ticket)

    def _skip(self, seen: Sequence[Position], mine: Sequence[Position]) -> None:
        self._conflicts += 1
        if self._conflicts > EXPECTED_CONFLICTS:
            ahead = seen[seen.index(mine[0]) :]
            kept = ahead[: max(len(mine), min(len(mine) << min(self._conflicts, 16), len(ahead) // 2))]
            self._skipped.append(Skipped(kept[0], kept[-1], len(kept), monotonic() + SKIP_FOR))

    async def _choose_and_write(
        self, server: Server, ticket: str, want: Want, now: int, many: bool
    ) -> tuple[list[Position], list[Position] | None]:
        """Look, choose, and note it if nobody else has noted anything meanwhile; gives what was seen too."""
        self._skipped = [each for each in self._skipped if each.until > monotonic()]
        if self._skipped and await server.abandoned.end():
            self._skipped, self._conflicts = [], 0
        most = sum(each.jobs for each in self._skipped) + (FURTHER * want.limit << min(self._conflicts, 4))
        passed: list[Range] = [(each.first, each.last) for each in self._skipped]
        try:
            for _ in range(TRIES):
                noted = await _read(server)
                others = [each for each in noted["tickets"] if each["at"] > now - VALID_FOR]
                seen = await server.read(lambda: best_positions(want, most, many=many))
                mine = _choose(seen, [*_ranges(others), *passed], want.limit)
                if not mine or await _try_to_write(server, noted["number"], others, _reservation_of(ticket, mine, now)):
                    return seen, mine
        except TROUBLE:
            pass
        return [], None


async def _read(server: Server) -> Reservation:
    """What is noted; a note that somebody else wrote is replaced."""
    meta = server.quick["perdure_meta"]
    noted = await server.calls.run(meta.find_one(_PLACE)) or {"number": 0, "tickets": []}
    try:
        known: Reservation = msgspec.to_builtins(msgspec.convert(noted, _Reservations))
        return known
    except msgspec.ValidationError:
        empty: Reservation = {"number": 1, "tickets": []}
        await server.calls.run(meta.replace_one(_PLACE, empty, upsert=True))
        return empty


def _ranges(tickets: Sequence[Reservation]) -> list[Range]:
    return [(tuple(each["first"]), tuple(each["last"])) for each in tickets]


def _choose(seen: Sequence[Position], taken: Sequence[Range], limit: int) -> list[Position]:
    free = (one for one in seen if not any(first <= one <= last for first, last in taken))
    return list(islice(free, limit))


def _reservation_of(ticket: str, mine: Sequence[Position], now: int) -> Reservation:
    return {"ticket": ticket, "first": list(mine[0]), "last": list(mine[-1]), "at": now}


async def _try_to_write(server: Server, number: int, others: Sequence[Reservation], mine: Reservation) -> bool:
    """Whether the document was still as we read it."""
    tickets = {"$set": {"tickets": [*others, mine]}, "$inc": {"number": 1}}
    meta = server.quick["perdure_meta"]
    if number == 0:
        empty = {"$setOnInsert": {"number": 0, "tickets": []}}
        await server.calls.run(meta.update_one(_PLACE, empty, upsert=True))
    written = await server.calls.run(meta.update_one({**_PLACE, "number": number}, tickets))
    return bool(written.modified_count)


async def _remove(server: Server, ticket: str) -> None:
    gone = {"$pull": {"tickets": {"ticket": ticket}}, "$inc": {"number": 1}}
    try:
        await server.calls.run(server.quick["perdure_meta"].update_one(_PLACE, gone))
    except TROUBLE:
        pass  # it will be worth nothing soon
