"""Reservations: how claimers of several processes avoid conflicts.

MongoDB cannot skip what another transaction is about to claim: two claimers that read the same heads of lanes write the
same documents, and the server aborts the second. One always succeeds, but the work of the others is lost, the more claimers
the more. So a claimer that has met a conflict makes reservations for a while. Before each claim it finds the best jobs and
writes into one small document, outside any transaction, from which position to which it is about to claim. Others leave
these jobs alone. It removes the reservation after the commit; the reservation of a dead claimer expires after some seconds.

Reservations only make conflicts rare; the transactions keep claims correct. A lone claimer never reserves.

A claimer that was killed before its commit leaves a transaction that locks the best jobs. A claimer that meets conflicts in
spite of its reservation skips these jobs for some seconds, twice as many each time but never more than half of what it
sees. It tries them again later, or as soon as it has ended that transaction (see `server_transactions`).
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
    """Jobs between two positions that are skipped until an instant."""

    first: Position
    last: Position
    jobs: int
    until: float


class ClaimReservations:
    """The reservations of one claimer."""

    def __init__(self) -> None:
        self._until = 0.0
        self._conflicts = 0  # conflicts in a row in spite of tickets
        self._skipped: list[Skipped] = []

    def conflict(self) -> None:
        """A claim conflicted with another one."""
        self._until = monotonic() + RESERVE_FOR

    @property
    def look_again(self) -> int:
        """Microseconds after which a claim that got less than it wanted may find more."""
        return LOOK_LATER if self._skipped else LOOK_AGAIN

    @asynccontextmanager
    async def reserve(
        self, server: Server, claim: Claim | None, now: int, many: bool = False
    ) -> AsyncIterator[list[str] | None]:
        """Reserve jobs for the duration of a claim and yield their ids; None: no reservation, take the best. `many`: there
        are probably very many lanes."""
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
        """Choose jobs, and write the reservation if no other was written meanwhile; also returns the positions that were
        read."""
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
    """Read the reservations. A document that another program wrote is replaced."""
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
    """Whether nobody has changed the document since it was read."""
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
