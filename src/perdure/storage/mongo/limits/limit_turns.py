"""Turns: keeps claims under limits from counting the same free places twice. One claim at a time has the turn; as a fast
path, two claims of one process may share it.

Only one claim at a time may count what runs under limits, and open and shut gates. Each writes both notes of `TURNS`, so two
at once conflict, and one is repeated.

A fast path lets two claims of one process run **concurrently** where they have nothing to do but to take jobs. The two open
and shut no gates, and each writes only one of the notes. That is safe because the last claim that wrote both notes was of
this process, which both see by its name in the notes: a claim of another process writes both, so it conflicts with each of
them. What one cannot see of the other it counts as if the other took all that it asks for, and that must fit under the
limits too; and it leaves the other's jobs alone. In any other case it raises `NeedsExclusiveTurn` and is repeated alone.

Two concurrent claims leave other processes hardly a gap. A claim that conflicts here writes the note `MET`, outside any
transaction. For a while all claims come one after the other then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from secrets import token_hex
from time import monotonic

from bson import ObjectId

from perdure.core.clock import SECOND
from perdure.storage.contract import Claim
from perdure.storage.rules import fast_path

from ..connection.operations import PREFIX, Steps, update
from ..connection.server import TROUBLE, Server
from ..reading.records import Document
from ..writing.small_documents import MET, TURNS

MET_FOR = 30.0  # seconds without concurrent claims after a conflict with another process
PAUSE = 1.0  # the same, after a concurrent claim had to be repeated alone
ROOM = 4  # times as many jobs as a claim asks for must fit before claims run concurrently


class NeedsExclusiveTurn(Exception):
    """A concurrent claim would have to do more than to take jobs."""


class LimitTurn:
    """The turn of one claim, which asks for at most `limit` jobs under limits."""

    def __init__(self, name: str, notes: Sequence[str], limit: int, rooms: dict[str, int]) -> None:
        self.name = name
        self.limit = limit
        self.rooms = rooms  # how many might have started at the gates that the last claim here looked at
        self.mine: set[str] = set()
        self.beside: list[LimitTurn] = []  # concurrent turns, also if they have ended
        self.met = False  # it conflicted with another process
        self.usual = False  # it had nothing to do but to take jobs
        self._notes = notes
        self._written = False

    @property
    def concurrent(self) -> bool:
        return len(self._notes) < len(TURNS)

    @property
    def reserved_by_others(self) -> int:
        """How many jobs concurrent claims may take that this one cannot see."""
        return sum(turn.limit for turn in self.beside)

    def others(self) -> set[str]:
        """The jobs that concurrent claims have chosen so far."""
        return {id for turn in self.beside for id in turn.mine}

    def expect(self, rooms: Mapping[str, int]) -> None:
        """Let the next claim ask for the heads of these gates with its candidates."""
        self.rooms.clear()
        self.rooms.update(rooms)

    def guess(self, limit: int) -> dict[str, int]:
        """The gates that a claim for so many jobs will probably read, and how many of their heads it needs."""
        more = 1 + len(self.others())
        return {gate: min(limit, room) + more for gate, room in self.rooms.items()}

    def begin(self) -> None:
        """The transaction begins, perhaps again."""
        self.mine.clear()
        self.usual = self.met = self._written = False

    def lock(self, now: int) -> Steps[None]:
        """From here on this claim is the only one, except for concurrent ones of this process."""
        if self._written:
            return
        self._written = True
        mine: Document = {"$set": {"at": now, "by": self.name, "claims": ObjectId()}}
        self.met = True  # unless the notes can be written
        yield from update("notes", [{"q": {"_id": note}, "u": mine, "upsert": True} for note in self._notes])
        self.met = False

    def check(self, notes: Sequence[Document], now: int) -> None:
        """Check that this process was the last to write both notes, and that no other has conflicted lately."""
        if any(note["_id"] == MET and note["at"] > now - MET_FOR * SECOND for note in notes):
            self.met = True
        names = [note.get("by") for note in notes if note["_id"] in TURNS]
        if self.met or names != [self.name] * len(TURNS):
            raise NeedsExclusiveTurn


class Turns:
    """The turns of one process, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._ended = asyncio.Event()
        self._under_way: list[LimitTurn] = []
        self._own, self._numbers = token_hex(6), count(1)  # names of turns; to ask the system for each takes long
        self._name: str | None = None  # in the notes, as far as is known
        self._usual = False
        self._rooms: dict[str, int] = {}
        self._not_before = self._met_until = self._told = 0.0

    @asynccontextmanager
    async def wait_for_turn(self, claim: Claim) -> AsyncIterator[LimitTurn]:
        limits = [want.limit for want in claim.wants if want.limited]
        plain = len(limits) == 1 and not any(want.alone for want in claim.wants)
        async with self._door:
            while self._under_way and not (plain and self._may_run_concurrently()):
                self._ended.clear()
                await self._ended.wait()
            turn = self._begin(sum(limits), concurrent=plain and self._may_run_concurrently())
        try:
            yield turn
            self._usual = turn.usual
            if not turn.concurrent:
                self._name = turn.name
        except BaseException:
            self._name = None  # it may have been committed: the next claim, alone, reads it or conflicts with it
            raise
        finally:
            turn.beside = []
            self._under_way.remove(turn)
            self._ended.set()

    def _may_run_concurrently(self) -> bool:
        return (
            fast_path.enabled()
            and self._name is not None
            and self._usual
            and monotonic() >= max(self._not_before, self._met_until)
            and len(self._under_way) < len(TURNS)
            and all(turn.concurrent for turn in self._under_way)
        )

    def _begin(self, limit: int, *, concurrent: bool) -> LimitTurn:
        notes: Sequence[str] = TURNS
        if concurrent and self._name is not None:
            written = [note for turn in self._under_way for note in turn._notes]
            notes = [next(note for note in TURNS if note not in written)]
            turn = LimitTurn(self._name, notes, limit, self._rooms)
        else:
            turn = LimitTurn(f"{self._own}.{next(self._numbers)}", notes, limit, self._rooms)
        for other in self._under_way:
            other.beside.append(turn)
            turn.beside.append(other)
        self._under_way.append(turn)
        return turn

    def note_unusual(self, turn: LimitTurn) -> None:
        """A concurrent claim had to be repeated alone."""
        self._usual = False
        self._not_before = monotonic() + PAUSE
        if turn.met:
            self._met_until = monotonic() + MET_FOR

    async def meet(self, server: Server, now: int) -> None:
        """A claim conflicted with another process: let all come one after the other for a while."""
        self._met_until = monotonic() + MET_FOR
        if monotonic() - self._told < MET_FOR / 3:
            return
        self._told = monotonic()
        with suppress(*TROUBLE):
            place = server.quick[f"{PREFIX}notes"]
            await server.calls.run(place.update_one({"_id": MET}, {"$set": {"at": now}}, upsert=True))
