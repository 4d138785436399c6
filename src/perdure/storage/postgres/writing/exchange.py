"""Runs exchanges: applies changes, resolves the edges that follow from them, and claims the next jobs.

The most common exchange, ordinary successes and a claim of jobs without limits, is one statement (`fast_exchange.py`); a
claim with several wants takes one for each. Where limited jobs are wanted, the successes go with their claim
(`fast_limits.py`). Everything else is applied row by row, in one transaction with the claim. Two parts have transactions of
their own, because they lock what others must not wait for. One is the edges of followed jobs that ended: they are on a list,
so they are not forgotten if this process dies in between. The other is the claims of limited jobs.
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
from ..edges.edges import Edges, ResolvedEdges
from ..limits.fast_limits import FastLimitedClaim, LimitedAnswer
from ..limits.limits import Limits
from .apply import Apply, Effects, are_short_successes

Claimed = dict[int, list[Record]]  # by the position of the want


@dataclass(slots=True)
class ClaimedBatch:
    """Claimed jobs, and what the claim found out beside them."""

    claimed: Claimed
    next_due: int | None
    suspects: bool


@dataclass(slots=True)
class Applied:
    """The answer to changes. `batch` is None if nothing was claimed yet."""

    verdicts: list[Verdict] = field(default_factory=list)
    batch: ClaimedBatch | None = None


class Exchanges:
    """The exchanges of one loop."""

    def __init__(
        self,
        apply: Apply,
        claims: Claims,
        limits: Limits,
        fast_exchange: FastExchange,
        fast_limits: FastLimitedClaim,
        edges: Edges,
        server: Callable[[], Server],
        now: Callable[[], int | None],
    ) -> None:
        self._apply = apply
        self._claims = claims
        self._limits = limits
        self._fast_exchange = fast_exchange
        self._fast_limits = fast_limits
        self._edges = edges
        self._server = server
        self._now = now

    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started], effects: Effects
    ) -> ExchangeResult:
        if claim is not None and (done := await self._try_fast_limits(changes, claim, started, effects)) is not None:
            return done
        work = self._apply_successes if are_short_successes(changes) else self._apply_row_by_row
        applied = await self._server().run_indexed(
            lambda connection: work(connection, changes, claim, started, effects)
        )
        if not effects.resolves and applied.batch is not None and claim is not None and not _limited(claim):
            return _result(applied.verdicts, applied.batch, unresolved=False)
        unresolved = await self.resolve_edges(effects) if effects.resolves else False
        if claim is None:
            return ExchangeResult(applied.verdicts, unresolved=unresolved)
        batch = applied.batch
        if batch is None or effects.resolves:
            batch = await self._claim_again(claim, batch, effects)
        if _limited(claim):
            batch = await self._claim_limited(claim, batch)
        return _result(applied.verdicts, batch, unresolved=unresolved)

    async def resolve_edges(self, effects: Effects) -> bool:
        """Resolve edges now, and rank jobs that were enqueued in a handler's transaction. Returns whether there is more to
        do. If it fails, the edges are still on the list."""
        resolved = 0

        async def resolve(connection: Connection) -> ResolvedEdges:
            return await self._edges.resolve(connection, CHUNK - resolved, effects, self._now(), newest=True)

        async def rank(connection: Connection) -> int:
            return await self._edges.rank(connection, CHUNK, effects, self._now())

        server = self._server()
        try:
            if effects.ranks:
                await server.run_indexed(rank)
            while resolved < CHUNK:
                found = await server.run_indexed(resolve)
                resolved += found.edges
                if not found.more:
                    return False
            return await server.run_indexed(self._edges.has_unresolved)
        except StoreError:
            return True

    # -- changes -------------------------------------------------------------------------------------
    async def _apply_successes(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        effects: Effects,
    ) -> Applied:
        """Report successes, then claim; in one statement where that is all. Each part is a transaction. A conflict repeats
        that part alone: a second claim with the same stamp would forget the jobs of the first."""
        places = [] if claim is None or started else _plain_wants(claim)
        if claim is not None and places:
            accepted, batch = await self._claim_each_want(connection, changes, claim, places, effects)
        else:
            accepted, batch = await self._exchange_in_steps(connection, changes, claim, started, effects)
        verdicts = await through_conflicts(lambda: self._verdicts(connection, changes, accepted, effects))
        return Applied(verdicts, batch)

    async def _verdicts(
        self, connection: Connection, changes: Sequence[Change], accepted: Collection[str], effects: Effects
    ) -> list[Verdict]:
        effects.changed |= bool(accepted)
        if len(accepted) == len(changes):
            return [ACCEPTED] * len(changes)
        # refused or repeated: the general path decides
        others = [change for change in changes if change.id not in accepted]
        async with connection.transaction():
            verdicts = await self._apply.apply(connection, others, effects, self._now())
        decided = {change.id: verdict for change, verdict in zip(others, verdicts, strict=True)}
        return [decided.get(change.id, ACCEPTED) for change in changes]

    async def _claim_each_want(
        self,
        connection: Connection,
        changes: Sequence[Change],
        claim: Claim,
        places: Sequence[int],
        effects: Effects,
    ) -> tuple[Collection[str], ClaimedBatch | None]:
        """The successes with the first of these wants, then the others."""
        accepted, batch = await self._exchange_one(connection, changes, claim, places[0], effects)
        for place in places[1:]:
            if batch is None:
                break
            _, also = await through_conflicts(partial(self._exchange_one, connection, (), claim, place, effects))
            if also is not None:
                claimed = {**batch.claimed, **also.claimed}
                batch = ClaimedBatch(claimed, also.next_due, batch.suspects or also.suspects)
        return accepted, batch

    async def _exchange_one(
        self, connection: Connection, changes: Sequence[Change], claim: Claim, place: int, effects: Effects
    ) -> tuple[Collection[str], ClaimedBatch | None]:
        """With a claim for the want at this place; any others are for limited jobs and come later."""
        now = self._now()
        if len(claim.wants) > 1:
            claim = msgspec.structs.replace(claim, wants=(claim.wants[place],))
        successes = self._apply.successes(changes, now)
        answer = await self._fast_exchange.try_fast_exchange(connection, successes, len(changes), claim, now)
        if answer is None:
            accepted, batch = await self._exchange_in_steps(connection, changes, claim, (), effects)
            if batch is not None:
                batch.claimed = {place: batch.claimed[0]}
            return accepted, batch
        accepted = [change.id for change in changes] if answer.accepted is None else set(answer.accepted)
        effects.ready.update(answer.limited)
        effects.resolves |= answer.followed
        if answer.followed:
            return accepted, None
        if answer.due:
            _, batch = await self._claim(connection, [], claim, effects)
            batch.claimed = {place: batch.claimed[0]}
            return accepted, batch
        return accepted, ClaimedBatch({place: answer.claimed}, answer.next_due, answer.suspects)

    async def _exchange_in_steps(
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
        batch: ClaimedBatch | None = None
        if claim is not None:
            cursors, batch = await self._claim(connection, before, claim, effects)
        else:
            cursors = await pipeline(connection, before) if before else []
        if not changes:
            return (), batch
        ended = await cursors[0].fetchall()
        effects.resolves |= any(followed for _, followed, _ in ended)
        effects.ready |= {queue for _, _, queue in ended if queue is not None}
        return {id for id, _, _ in ended}, batch

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
            if claim is None or effects.resolves:
                await pipeline(connection, before) if before else None
                return Applied(verdicts)
            _, batch = await self._claim(connection, before, claim, effects)
            return Applied(verdicts, batch)

    # -- successes with a claim of limited jobs ------------------------------------------------------
    async def _try_fast_limits(
        self, changes: Sequence[Change], claim: Claim, started: Sequence[Started], effects: Effects
    ) -> ExchangeResult | None:
        """Report successes and claim limited jobs in one turn, then claim the others. None: not tried."""
        places = [place for place, want in enumerate(claim.wants) if want.limited]
        if started or not changes or len(places) != 1 or not are_short_successes(changes):
            return None
        place, want = places[0], claim.wants[places[0]]
        if not self._fast_limits.is_worth_trying(want):
            return None

        async def run(connection: Connection) -> LimitedAnswer | None:
            now = self._now()
            successes = self._apply.successes(changes, now)
            return await self._fast_limits.try_fast_exchange(connection, successes, len(changes), claim, want, now)

        server = self._server()
        answer = await server.run_limited(run)
        if answer is None:
            return None
        effects.ready.update(answer.limited)
        effects.resolves |= answer.followed
        verdicts = await self._verdicts_on(changes, answer.accepted, effects)
        unresolved = await self.resolve_edges(effects) if effects.resolves else False
        others = await server.run_indexed(lambda connection: self._apply_successes(connection, (), claim, (), effects))
        assert others.batch is not None
        if answer.claimed is None:
            batch = await self._claim_limited(claim, others.batch)
        else:
            batch = await self._claim_rest(claim, place, answer, others.batch)
        return _result(verdicts, batch, unresolved=unresolved)

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

    async def _claim_again(self, claim: Claim, batch: ClaimedBatch | None, effects: Effects) -> ClaimedBatch:
        """Claim what is still wanted, now that followers may have been released."""
        before = {} if batch is None else batch.claimed
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

    async def _claim_limited(self, claim: Claim, batch: ClaimedBatch) -> ClaimedBatch:
        """Claim limited jobs beside others."""
        wants = {place: want for place, want in enumerate(claim.wants) if want.limited}
        ((place, want), *several) = wants.items()
        if not several and self._fast_limits.is_worth_trying(want):
            answer = await self._server().run_limited(
                lambda connection: self._fast_limits.try_fast_claim(connection, claim, want, self._now())
            )
            if answer is not None and answer.claimed is not None:
                return await self._claim_rest(claim, place, answer, batch)
        return await self._claim_by_gates(claim, wants, batch)

    async def _claim_rest(self, claim: Claim, place: int, answer: LimitedAnswer, before: ClaimedBatch) -> ClaimedBatch:
        """What the fast path claimed, and the rest by the general path if that may find more."""
        found = answer.claimed or []
        batch = ClaimedBatch(
            {**before.claimed, place: found}, 0 if answer.more else before.next_due, before.suspects or answer.suspects
        )
        if not answer.short:
            return batch
        want = claim.wants[place]
        return await self._claim_by_gates(
            claim, {place: msgspec.structs.replace(want, limit=want.limit - len(found))}, batch
        )

    async def _claim_by_gates(self, claim: Claim, wants: Mapping[int, Want], batch: ClaimedBatch) -> ClaimedBatch:
        """Claim limited jobs by the general path, beside those that were claimed already."""

        async def run(connection: Connection) -> ClaimedBatch:
            claimed, due, suspects = dict(batch.claimed), batch.next_due, batch.suspects
            prospects = await self._limits.prospects(connection, list(wants.values()), self._now())
            if not any(any(prospect) for prospect in prospects):
                return batch
            async with connection.transaction():
                for (place, want), prospect in zip(wants.items(), prospects, strict=True):
                    found = await self._limits.claim(connection, claim, want, prospect, self._now())
                    claimed[place] = [*batch.claimed.get(place, ()), *found]
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


def _result(verdicts: Sequence[Verdict], batch: ClaimedBatch, *, unresolved: bool) -> ExchangeResult:
    claimed = [record for place in sorted(batch.claimed) for record in batch.claimed[place]]
    return ExchangeResult(verdicts, claimed, batch.next_due, batch.suspects, unresolved)
