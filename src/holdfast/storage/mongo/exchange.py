"""The exchange: apply, note the started, claim, in one transaction; and how those of one process take turns.

A claim alone looks out before its transaction begins, and needs none if there is nothing for it: so an idle worker costs
little. What it saw holds for the transaction as well, as if the claim had been a moment earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

from holdfast.lifecycle import Change
from holdfast.storage.contract import Claim, Exchanged, Started

from .apply import apply, note_started
from .claim import Choice, Outlook, is_vain, look_out
from .claim import claim as claim_jobs
from .faults import Conflict
from .server import Patience, Server
from .settling import Way, settled, ways
from .steps import Steps
from .tickets import Tickets


class Told(NamedTuple):
    """An answer, and what listeners are to hear of it."""

    exchanged: Exchanged
    ready: set[str]
    changed: bool
    left: list[str]  # entries on the list for `settle`


def exchange(
    changes: Sequence[Change],
    claim: Claim | None,
    started: Sequence[Started],
    now: int,
    chunk: int,
    choice: Choice,
    way: Way,
) -> Steps[Told]:
    applied = yield from apply(changes, now, way)
    if started:
        yield from note_started(started)
    followed = yield from settled(applied.parents, way, chunk, now, applied.written)
    left = applied.left + followed.left
    ready, changed = applied.ready | followed.ready, applied.changed or followed.changed
    if claim is None:
        return Told(Exchanged(applied.verdicts, unsettled=bool(left)), ready, changed, left)
    claimed = yield from claim_jobs(claim, now, chunk, choice)
    exchanged = Exchanged(applied.verdicts, claimed.records, claimed.next_due, claimed.suspects, bool(left))
    return Told(exchanged, ready | claimed.ready, changed, left)


class Write(Protocol):
    """Take steps in a transaction."""

    async def __call__(self, steps: Callable[[], Steps[Told]], *, through_conflicts: bool) -> Told: ...


class Read(Protocol):
    """Take steps that read what is committed."""

    async def __call__(self, steps: Callable[[], Steps[Outlook]]) -> Outlook: ...


class Exchanges:
    """The exchanges of one store, as far as they know of each other."""

    def __init__(
        self, server: Callable[[], Server], write: Write, read: Read, now: Callable[[], int], chunk: int
    ) -> None:
        self._server = server
        self._write = write
        self._read = read
        self._now = now
        self._chunk = chunk
        self._tickets = Tickets()
        self._limited = asyncio.Lock()  # claims under limits come one after the other in any case
        self._taking: list[set[str]] = []  # jobs that each claim under way here is about to take

    async def take(self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started]) -> Told:
        limited = claim is not None and any(want.limited for want in claim.wants)
        async with self._limited if limited else nullcontext():
            return await self._take(changes, claim, started)

    async def _take(self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started]) -> Told:
        """One claim after another, as far as claimers know of each other; see `tickets`."""
        claims = claim is not None and bool(claim.wants)
        patience, ways_to_settle = Patience(), ways()
        while True:
            try:
                async with self._tickets.drawn(self._server(), claim, self._now()) as only:
                    return await self._try(changes, claim, started, only, ways_to_settle)
            except Conflict:
                if not claims or patience.over:
                    raise
                self._tickets.conflict()
            await patience.pause()

    async def _try(
        self,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        only: Sequence[str] | None,
        ways_to_settle: Iterator[Way],
    ) -> Told:
        outlook = None
        if claim is not None and only is None and not changes and not started:
            outlook = await self._read(look_out)
            now = self._now()
            if is_vain(claim, outlook, now):
                due = None if outlook.next_due is None else outlook.next_due - now
                return Told(Exchanged([], next_due=due), set(), False, [])
        mine: set[str] = set()
        choice = Choice(only, self._taking, mine, outlook)

        def steps() -> Steps[Told]:
            mine.clear()
            return exchange(changes, claim, started, self._now(), self._chunk, choice, next(ways_to_settle))

        self._taking.append(mine)
        try:
            return await self._write(steps, through_conflicts=claim is None)
        finally:
            self._taking[:] = [each for each in self._taking if each is not mine]
