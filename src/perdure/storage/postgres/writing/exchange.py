"""An exchange: changes, what follows from them for jobs that wait, and the claim.

The most common one, plain successes and a claim for plain jobs, is one statement; a claim with several wants takes one for
each. Where limited jobs are wanted, the successes go with the claim of those (`passing.py`). Anything else is applied
carefully, in one transaction with the claim. Two things have transactions of their own, because they lock what the others
must not wait for: the edges of followed jobs that ended, which are on a list and so are not forgotten should this process
die in between, and claims of limited jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from perdure.core.lifecycle import Change
from perdure.core.record import Record
from perdure.errors import StoreError
from perdure.storage.contract import ACCEPTED, CHUNK, Claim, ExchangeResult, Started, Verdict, Want

from ..claiming.claim import Claims, read_outlook
from ..claiming.fast_exchange import FastExchange
from ..connection.server import Connection, Cursor, Server, Statement, pipeline, through_conflicts
from ..edges.edges import Edges, Looked
from ..limits.fast_limits import LimitedClaimStatement, Passed
from ..limits.limits import Limits
from .apply import Apply, Effects, are_short_successes

Claimed = dict[int, list[Record]]  # by the place of the want


@dataclass(slots=True)
class ClaimedBatch:
    """What a claim gave."""

    claimed: Claimed
    next_due: int | None
    suspects: bool


@dataclass(slots=True)
class Applied:
    """The answer to changes. `taken` is None if nothing was claimed yet."""

    verdicts: list[Verdict] = field(default_factory=list)
    taken: ClaimedBatch | None = None


class Exchanges:
    """The exchanges of one loop."""

    def __init__(
        self,
        apply: Apply,
        claims: Claims,
        limits: Limits,
        fast_exchange: FastExchange,
        passing: LimitedClaimStatement,
        edges: Edges,
        server: Callable[[], Server],
        now: Callable[[], int | None],
    ) -> None:
        self._apply = apply
        self._claims = claims
        self._limits = limits
        self._fast_exchange = fast_exchange
        self._passing = passing
        self._edges = edges
        self._server = server
        self._now = now

    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started], effects: Effects
    ) -> ExchangeResult:
        if claim is not None and (place := self._passes(changes, claim, started)) is not None:
            return await self._passed(changes, claim, place, effects)
        work = self._plainly if are_short_successes(changes) else self._apply_row_by_row
        said = await self._server().run_indexed(lambda connection: work(connection, changes, claim, started, effects))
        if not effects.settles and said.taken is not None and claim is not None and not _limited(claim):
            return _answer(said.verdicts, said.taken, unresolved=False)
        unresolved = await self.settle(effects) if effects.settles else False
        if claim is None:
            return ExchangeResult(said.verdicts, unresolved=unresolved)
        taken = said.taken
        if taken is None or effects.settles:
            taken = await self._claim_again(claim, taken, effects)
        if _limited(claim):
            taken = await self._claim_limited(claim, taken)
        return _answer(said.verdicts, taken, unresolved=unresolved)

    async def settle(self, effects: Effects) -> bool:
        """What follows at once for jobs that wait, or were enqueued in a handler's transaction; gives whether there is more
        to do. Should it fail: it is on the list."""
        looked = 0

        async def follow(connection: Connection) -> Looked:
            return await self._edges.follow(connection, CHUNK - looked, effects, self._now(), newest=True)

        async def place(connection: Connection) -> int:
            return await self._edges.place(connection, CHUNK, effects, self._now())

        server = self._server()
        try:
            if effects.places:
                await server.run_indexed(place)
            while looked < CHUNK:
                found = await server.run_indexed(follow)
                looked += found.edges
                if not found.more:
                    return False
            return await server.run_indexed(self._edges.anything)
        except StoreError:
            return True

    # -- changes -------------------------------------------------------------------------------------
    async def _plainly(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        effects: Effects,
    ) -> Applied:
        """Successes, then the claim; in one statement where that is all. Each part is a transaction, and once one is through
        a conflict of the next repeats that one alone: a second claim by that stamp would forget the jobs of the first."""
        places = [] if claim is None or started else _plain_wants(claim)
        if claim is not None and places:
            accepted, taken = await self._one_by_one(connection, changes, claim, places, effects)
        else:
            accepted, taken = await self._in_steps(connection, changes, claim, started, effects)
        verdicts = await through_conflicts(lambda: self._verdicts(connection, changes, accepted, effects))
        return Applied(verdicts, taken)

    async def _verdicts(
        self, connection: Connection, changes: Sequence[Change], accepted: Collection[str], effects: Effects
    ) -> list[Verdict]:
        effects.changed |= bool(accepted)
        if len(accepted) == len(changes):
            return [ACCEPTED] * len(changes)
        # refused or repeated: looked at as they stand
        others = [change for change in changes if change.id not in accepted]
        async with connection.transaction():
            verdicts = await self._apply.apply(connection, others, effects, self._now())
        told = {change.id: verdict for change, verdict in zip(others, verdicts, strict=True)}
        return [told.get(change.id, ACCEPTED) for change in changes]

    async def _one_by_one(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim,
        places: Sequence[int],
        effects: Effects,
    ) -> tuple[Collection[str], ClaimedBatch | None]:
        """The successes with the first of these wants, then the others."""
        accepted, taken = await self._at_once(connection, changes, claim, places[0], effects)
        for place in places[1:]:
            if taken is None:
                break
            _, also = await through_conflicts(partial(self._at_once, connection, (), claim, place, effects))
            if also is not None:
                claimed = {**taken.claimed, **also.claimed}
                taken = ClaimedBatch(claimed, also.next_due, taken.suspects or also.suspects)
        return accepted, taken

    async def _at_once(
        self, connection: Connection, changes: Sequence[Change], claim: Claim, place: int, effects: Effects
    ) -> tuple[Collection[str], ClaimedBatch | None]:
        """With a claim for the want at this place; any others are for limited jobs and come later."""
        now = self._now()
        if len(claim.wants) > 1:
            claim = msgspec.structs.replace(claim, wants=(claim.wants[place],))
        successes = self._apply.successes(changes, now)
        answer = await self._fast_exchange.try_fast_exchange(connection, successes, len(changes), claim, now)
        if answer is None:
            accepted, taken = await self._in_steps(connection, changes, claim, (), effects)
            if taken is not None:
                taken.claimed = {place: taken.claimed[0]}
            return accepted, taken
        accepted = [change.id for change in changes] if answer.accepted is None else set(answer.accepted)
        effects.ready.update(answer.limited)
        effects.settles |= answer.followed
        if answer.followed:
            return accepted, None
        if answer.due:
            _, taken = await self._claim(connection, [], claim, effects)
            taken.claimed = {place: taken.claimed[0]}
            return accepted, taken
        return accepted, ClaimedBatch({place: answer.claimed}, answer.next_due, answer.suspects)

    async def _in_steps(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        effects: Effects,
    ) -> tuple[Collection[str], ClaimedBatch | None]:
        before: list[Statement] = []
        if changes:
            before.append(self._apply.succeed(changes, self._now()))
        if started:
            before.append(self._apply.started(started))
        taken: ClaimedBatch | None = None
        if claim is not None:
            cursors, taken = await self._claim(connection, before, claim, effects)
        else:
            cursors = await pipeline(connection, before) if before else []
        if not changes:
            return (), taken
        ended = await cursors[0].fetchall()
        effects.settles |= any(followed for _, followed, _ in ended)
        effects.ready |= {queue for _, _, queue in ended if queue is not None}
        return {id for id, _, _ in ended}, taken

    async def _apply_row_by_row(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        effects: Effects,
    ) -> Applied:
        async with connection.transaction():
            verdicts = await self._apply.apply(connection, changes, effects, self._now())
            before = [self._apply.started(started)] if started else []
            if claim is None or effects.settles:
                await pipeline(connection, before) if before else None
                return Applied(verdicts)
            _, taken = await self._claim(connection, before, claim, effects)
            return Applied(verdicts, taken)

    # -- successes with a claim of limited jobs ------------------------------------------------------
    def _passes(self, changes: Sequence[Change], claim: Claim, started: Sequence[Started]) -> int | None:
        """The place of the want for limited jobs, if successes are to be said with its claim."""
        places = [place for place, want in enumerate(claim.wants) if want.limited]
        if started or not changes or len(places) != 1 or not are_short_successes(changes):
            return None
        return places[0] if self._passing.is_simple(claim.wants[places[0]]) else None

    async def _passed(self, changes: Sequence[Change], claim: Claim, place: int, effects: Effects) -> ExchangeResult:
        """Say these successes and claim limited jobs in one turn, then the others."""

        async def run(connection: Connection) -> Passed:
            now = self._now()
            successes = self._apply.successes(changes, now)
            return await self._passing.exchange(connection, successes, len(changes), claim, claim.wants[place], now)

        server = self._server()
        passed = await server.run_limited(run)
        effects.ready.update(passed.limited)
        effects.settles |= passed.followed
        verdicts = await self._verdicts_on(changes, passed.accepted, effects)
        unresolved = await self.settle(effects) if effects.settles else False
        said = await server.run_indexed(lambda connection: self._plainly(connection, (), claim, (), effects))
        assert said.taken is not None
        if passed.claimed is None:
            taken = await self._claim_limited(claim, said.taken)
        else:
            taken = _with(said.taken, place, passed)
            if passed.short:
                rest = msgspec.structs.replace(claim.wants[place], limit=claim.wants[place].limit - len(passed.claimed))
                taken = await self._claim_by_gates(claim, {place: rest}, taken)
        return _answer(verdicts, taken, unresolved=unresolved)

    async def _verdicts_on(
        self, changes: Sequence[Change], accepted: Collection[str] | None, effects: Effects
    ) -> list[Verdict]:
        if accepted is None:
            effects.changed = True
            return [ACCEPTED] * len(changes)
        took_hold = set(accepted)
        return await self._server().run_indexed(
            lambda connection: self._verdicts(connection, changes, took_hold, effects)
        )

    # -- claims --------------------------------------------------------------------------------------
    async def _claim(
        self, connection: Connection, before: Sequence[Statement], claim: Claim, effects: Effects
    ) -> tuple[list[Cursor], ClaimedBatch]:
        cursors, claimed, outlook, promoted = await self._claims.claim(connection, before, claim, CHUNK, self._now())
        effects.ready |= promoted
        return cursors, ClaimedBatch(claimed, outlook.next_due, outlook.suspects)

    async def _claim_again(self, claim: Claim, taken: ClaimedBatch | None, effects: Effects) -> ClaimedBatch:
        """Claim what is still wanted, now that jobs may have been let go."""
        before = {} if taken is None else taken.claimed
        wants = [
            msgspec.structs.replace(want, limit=want.limit - len(before.get(place, ())))
            for place, want in enumerate(claim.wants)
        ]
        rest = msgspec.structs.replace(claim, wants=tuple(wants))

        async def run(connection: Connection) -> ClaimedBatch:
            return (await self._claim(connection, [], rest, effects))[1]

        again = await self._server().run_indexed(run)
        again.claimed = {
            place: [*before.get(place, ()), *again.claimed.get(place, ())] for place in range(len(claim.wants))
        }
        return again

    async def _claim_limited(self, claim: Claim, taken: ClaimedBatch) -> ClaimedBatch:
        wants = {place: want for place, want in enumerate(claim.wants) if want.limited}
        if len(wants) == 1:
            ((place, want),) = wants.items()
            passed = await self._pass_alone(claim, want)
            if passed is not None and passed.claimed is not None:
                taken = _with(taken, place, passed)
                if not passed.short:
                    return taken
                wants = {place: msgspec.structs.replace(want, limit=want.limit - len(passed.claimed))}
        return await self._claim_by_gates(claim, wants, taken)

    async def _pass_alone(self, claim: Claim, want: Want) -> Passed | None:
        if not self._passing.is_simple(want):
            return None
        return await self._server().run_limited(
            lambda connection: self._passing.claim(connection, claim, want, self._now())
        )

    async def _claim_by_gates(self, claim: Claim, wants: Mapping[int, Want], taken: ClaimedBatch) -> ClaimedBatch:
        """Claim limited jobs by the general path, beside those that were claimed already."""

        async def run(connection: Connection) -> ClaimedBatch:
            claimed, due, suspects = dict(taken.claimed), taken.next_due, taken.suspects
            prospects = await self._limits.prospects(connection, list(wants.values()), self._now())
            if not any(any(prospect) for prospect in prospects):
                return taken
            async with connection.transaction():
                for (place, want), prospect in zip(wants.items(), prospects, strict=True):
                    found = await self._limits.claim(connection, claim, want, prospect, self._now())
                    claimed[place] = [*taken.claimed.get(place, ()), *found]
                for want in wants.values():
                    opening = await self._limits.opening(connection, want, self._now())
                    due = min((each for each in (due, opening) if each is not None), default=None)
                if any(prospect.suspects for prospect in prospects):
                    outlooks = [self._claims.outlook(want, self._now()) for want in wants.values()]
                    suspects |= (await read_outlook(await pipeline(connection, outlooks))).suspects
            return ClaimedBatch(claimed, due, suspects)

        return await self._server().run_limited(run)


def _limited(claim: Claim) -> bool:
    return any(want.limited for want in claim.wants)


def _plain_wants(claim: Claim) -> list[int]:
    """The places of the wants for plain jobs, beside those for limited ones; none where suspects are wanted."""
    if any(want.alone for want in claim.wants):
        return []
    return [place for place, want in enumerate(claim.wants) if want.limit > 0 and not want.limited]


def _with(taken: ClaimedBatch, place: int, passed: Passed) -> ClaimedBatch:
    claimed = {**taken.claimed, place: passed.claimed or []}
    return ClaimedBatch(claimed, 0 if passed.more else taken.next_due, taken.suspects or passed.suspects)


def _answer(verdicts: Sequence[Verdict], taken: ClaimedBatch, *, unresolved: bool) -> ExchangeResult:
    claimed = [record for place in sorted(taken.claimed) for record in taken.claimed[place]]
    return ExchangeResult(verdicts, claimed, taken.next_due, taken.suspects, unresolved)
