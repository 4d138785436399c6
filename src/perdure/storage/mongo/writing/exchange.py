"""The exchange: applies changes, writes starts and claims jobs, in one transaction.

A claim without changes reads its candidates before the transaction and needs none if there is nothing for it, so an idle
worker costs little. Its candidates stay valid in the transaction, as if the claim had come a moment earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from perdure.core.lifecycle import Change
from perdure.core.record import Record
from perdure.storage.contract import Claim, ExchangeResult, Started
from perdure.storage.rules.guards import judge

from ..claiming.claim import ClaimScope, Expectation, guess_of, is_nothing_to_claim
from ..claiming.claim import claim as claim_jobs
from ..claiming.claim_candidates import read_candidates, sample_for_many_lanes
from ..claiming.claim_reservations import ClaimReservations
from ..connection.errors import Conflict
from ..connection.operations import Steps, insert, insert_last
from ..connection.server import Retries, Server
from ..edges.resolve_edges import EdgeResolution, edge_resolutions, resolve_edges_of
from ..limits import running_counts
from ..limits.limit_gates import is_quiet
from ..limits.limit_turns import LimitTurn, NeedsExclusiveTurn, Turns
from ..limits.limit_wakeups import collect_wakeups
from ..reading.records import Document
from .apply import apply, find_held, write_starts
from .fast_apply import ClaimedJobs, Outdated
from .updates import read_rows

T = TypeVar("T")


class ExchangeOutcome(NamedTuple):
    """The result of an exchange, and what it must signal."""

    exchanged: ExchangeResult
    ready: set[str]
    changed: bool
    left: list[str]  # entries on the list for `resolve_edges`
    inside: bool = False  # the transaction carried the signal for them


def exchange(
    changes: Sequence[Change],
    claim: Claim | None,
    started: Sequence[Started],
    now: int,
    chunk: int,
    scope: ClaimScope,
    resolution: EdgeResolution,
    claimed: Mapping[str, Record],
    running: running_counts.Change,
) -> Steps[ExchangeOutcome]:
    """`running` collects how the number of jobs under limits changes; the caller stores it in the end."""
    wakeups: list[Document] = []
    applied = yield from collect_wakeups(apply(changes, now, resolution, claimed), wakeups)
    if started:
        yield from write_starts(started)
    followed = yield from collect_wakeups(
        resolve_edges_of(applied.parents, resolution, chunk, now, applied.written), wakeups
    )
    left = applied.left + followed.left
    ready, changed = applied.ready | followed.ready, applied.changed or followed.changed
    if claim is None:
        yield from insert("notes", wakeups)
        return ExchangeOutcome(ExchangeResult(applied.verdicts, unresolved=bool(left)), ready, changed, left)
    claimed_jobs = yield from claim_jobs(claim, now, chunk, scope, wakeups, running)
    exchanged = ExchangeResult(
        applied.verdicts, claimed_jobs.records, claimed_jobs.next_due, claimed_jobs.suspects, bool(left)
    )
    return ExchangeOutcome(exchanged, ready | claimed_jobs.ready, changed, left)


class Write(Protocol):
    """Runs operations in a transaction."""

    async def __call__(
        self,
        steps: Callable[[], Steps[ExchangeOutcome]],
        *,
        through_conflicts: bool,
        read_back: Callable[[], Steps[ExchangeOutcome | None]] | None,
    ) -> ExchangeOutcome: ...


class Read(Protocol):
    """Runs operations that read committed data."""

    async def __call__(self, steps: Callable[[], Steps[T]]) -> T: ...


class Exchanges:
    """The exchanges of one store. Concurrent claims among them take different jobs."""

    def __init__(
        self,
        server: Callable[[], Server],
        write: Write,
        read: Read,
        now: Callable[[], int],
        signal: Callable[[Collection[str], bool], list[Document]],
        chunk: int,
    ) -> None:
        self._server = server
        self._write = write
        self._read = read
        self._now = now
        self._signal = signal
        self._chunk = chunk
        self._reservations = ClaimReservations()
        self._turns = Turns()  # of claims under limits
        self._under_way: list[ClaimScope] = []  # of the claims here
        self._expected = Expectation()
        self._claimed = ClaimedJobs()

    async def take(self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started]) -> ExchangeOutcome:
        if claim is not None and any(want.limited for want in claim.wants):
            outcome = await self._exchange_in_turn(changes, claim, started)
        else:
            outcome = await self._exchange(changes, claim, started)
        self._claimed.forget([change.id for change in changes])
        self._claimed.add(outcome.exchanged.claimed)
        return outcome

    async def _exchange_in_turn(
        self, changes: Sequence[Change], claim: Claim, started: Sequence[Started]
    ) -> ExchangeOutcome:
        while True:
            async with self._turns.wait_for_turn(claim) as turn:
                try:
                    return await self._exchange(changes, claim, started, turn)
                except NeedsExclusiveTurn:
                    self._turns.note_unusual(turn)

    async def _exchange(
        self, changes: Sequence[Change], claim: Claim | None, started: Sequence[Started], turn: LimitTurn | None = None
    ) -> ExchangeOutcome:
        """Run the exchange, again after conflicts with other claimers: see `claim_reservations`."""
        claims = claim is not None and bool(claim.wants)
        retries, resolutions = Retries(), edge_resolutions()
        if claims and self._expected.is_unknown:
            self._expected.note_sample(many=await self._read(sample_for_many_lanes))
        while True:
            try:
                async with self._reservations.reserve(self._server(), claim, self._now(), self._expected.many) as only:
                    with self._beside_others(only, turn) as scope:
                        return await self._attempt(scope, changes, claim, started, resolutions)
            except Outdated as outdated:
                self._claimed.forget(outdated.ids)  # the next try reads them
                continue
            except Conflict:
                if not claims or retries.over:
                    raise
                if retries.long:
                    await self._server().abandoned.end()
                if turn is not None and turn.met:
                    await self._turns.meet(self._server(), self._now())
                    if turn.concurrent:
                        raise NeedsExclusiveTurn from None
                else:
                    self._reservations.conflict()
            await retries.pause()

    @contextmanager
    def _beside_others(self, only: Sequence[str] | None, turn: LimitTurn | None = None) -> Iterator[ClaimScope]:
        """Leave the jobs of concurrent claims to them from their beginning to our end: our snapshot may be older than their
        commit. A claim that fails takes nothing."""
        beside = [other.mine for other in self._under_way]
        scope = ClaimScope(only, beside, set(), self._expected, self._reservations.look_again, turn)
        for other in self._under_way:
            other.taking.append(scope.mine)
        self._under_way.append(scope)
        try:
            yield scope
        except BaseException:
            scope.mine.clear()
            raise
        finally:
            self._under_way[:] = [each for each in self._under_way if each is not scope]

    async def _attempt(
        self,
        scope: ClaimScope,
        changes: Sequence[Change],
        claim: Claim | None,
        started: Sequence[Started],
        resolutions: Iterator[EdgeResolution],
    ) -> ExchangeOutcome:
        if claim is not None and scope.only is None and not changes and not started:
            guess = guess_of(claim, self._now(), scope)
            limited = scope.turn is not None
            candidates = await self._read(lambda: read_candidates(claim.wants, guess, limited=limited))
            scope.expected.note(candidates)
            now = self._now()
            if is_nothing_to_claim(claim, candidates, now):
                due = None if candidates.next_due is None else candidates.next_due - now
                return ExchangeOutcome(ExchangeResult([], next_due=due), set(), False, [])
            if not limited or is_quiet(candidates.limits):  # gates are looked at inside alone
                scope = scope._replace(candidates=candidates)
        claimed = self._claimed.of(changes)

        def steps() -> Steps[ExchangeOutcome]:
            scope.mine.clear()
            if scope.turn is not None:
                scope.turn.begin()
            resolution = next(resolutions)
            running: running_counts.Change = Counter()
            exchanging = exchange(
                changes, claim, started, self._now(), self._chunk, scope, resolution, claimed, running
            )
            outcome = yield from insert_last("batches", running_counts.collect_counts(exchanging, running))
            yield from running_counts.note(running)
            signal = self._signal(outcome.ready, outcome.changed)
            yield from insert("signals", signal)
            return outcome._replace(inside=bool(signal))

        read_back = None if claim is None else partial(_read_back, changes, claim, self._now())
        return await self._write(steps, through_conflicts=claim is None, read_back=read_back)


def _read_back(changes: Sequence[Change], claim: Claim, now: int) -> Steps[ExchangeOutcome | None]:
    """The result of an exchange if its claim was committed. Else nothing was claimed, and the whole exchange may be
    repeated: changes that were written are answered as repeated."""
    records = yield from find_held(claim.worker, claim.stamp)
    if not records:
        return None
    rows = yield from read_rows([change.id for change in changes])
    verdicts = [judge(rows.get(change.id), change, now) for change in changes]
    return ExchangeOutcome(ExchangeResult(verdicts, records, next_due=0, unresolved=True), set(), True, [])
