"""Claims the best jobs over all wanted lanes.

A lane is the ready jobs of one queue, task and routing key; the index of places keeps each in claim order. The server lists
the lanes by skipping from one to the next, and merges the wanted ones by their heads. So a claim reads as many jobs as it
takes plus one per lane, however many others wait. Where there are very many lanes it merges lines: see `claim_candidates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from time import monotonic
from typing import NamedTuple

from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Claim, Want
from perdure.storage.rules import fast_path
from perdure.storage.rules.records import set_state, write_claim

from ..connection.operations import Steps, find, insert
from ..limits import running_counts
from ..limits.limit_gates import is_quiet, read_limit_news
from ..limits.limit_turns import LimitTurn
from ..limits.limit_wakeups import notify_limit_claimers
from ..limits.limits import Limits
from ..reading.records import DUE, SLIM, WHOLE, Document
from ..upkeep.unreadable import readable
from ..writing.updates import write
from .claim_candidates import (
    LANES_AT_ONCE,
    NO_GUESS,
    NOWHERE,
    Best,
    Candidates,
    Guess,
    Position,
    Spots,
    first_ids,
    first_positions,
    read_candidates,
)
from .claim_positions import IN_ORDER, forget, not_expired

MANY_FOR = 600.0  # seconds that a store expects very many lanes after it has seen so many


class Claimed(NamedTuple):
    records: list[Record]
    next_due: int | None
    suspects: bool
    ready: set[str]  # queues of promoted jobs


class Expectation:
    """What the last claim of this store found, for a guess at the next: the `spots` that it wanted, and whether there are
    very `many` lanes."""

    def __init__(self) -> None:
        self.spots = NOWHERE
        self._many_until = 0.0
        self._sampled = False

    @property
    def many(self) -> bool:
        return monotonic() < self._many_until

    @property
    def is_unknown(self) -> bool:
        """Whether it is not known if there are very many lanes, or that was known long ago."""
        return not self._sampled or (self._many_until > 0.0 and not self.many)

    def note_sample(self, *, many: bool) -> None:
        self._sampled = True
        self._many_until = monotonic() + MANY_FOR if many else 0.0

    def note(self, candidates: Candidates) -> None:
        if candidates.lines is not None and not self.many:
            self._many_until = monotonic() + MANY_FOR


class ClaimScope(NamedTuple):
    """Which jobs one claim may take.

    only        these jobs alone, if they are named
    taking      jobs that concurrent claims of this process are taking
    mine        jobs that this claim takes; it adds them
    expected    what this store's last claim saw
    look_again  microseconds after which this claim may find more
    turn        its turn among claims under limits, if it is one
    candidates  what it has read before its transaction, if it has
    earlier     jobs that it has claimed for its earlier wants
    """

    only: Sequence[str] | None
    taking: list[set[str]]
    mine: set[str]
    expected: Expectation
    look_again: int = 0
    turn: LimitTurn | None = None
    candidates: Candidates | None = None
    earlier: frozenset[str] = frozenset()

    def others(self) -> set[str]:
        return {id for each in (*self.taking, self.earlier) for id in each}

    def after(self, earlier: frozenset[str]) -> ClaimScope:
        """The scope of another want of the same claim, which has claimed some jobs already."""
        return self._replace(only=None, earlier=earlier)


def claim(
    claim: Claim, now: int, chunk: int, scope: ClaimScope, wakeups: list[Document], running: running_counts.Change
) -> Steps[Claimed]:
    """Promote due jobs, then claim want by want. Only the first want is bound to the scope's `only`. `wakeups` and
    `running` come from the same exchange and are not stored yet. Wake-ups are stored only if this claim cannot use them."""
    limited = scope.turn is not None
    candidates = scope.candidates or (
        yield from read_candidates(claim.wants, guess_of(claim, now, scope), limited=limited)
    )
    scope.expected.note(candidates)
    ready: set[str] = set()
    if candidates.next_due is not None and candidates.next_due <= now:
        promoted = yield from promote(chunk, now)
        ready = {record.queue for record in promoted}
        candidates = yield from read_candidates(
            claim.wants, NO_GUESS._replace(many=candidates.lines is not None), limited=limited
        )
    limits = None
    if scope.turn is None:
        yield from insert("notes", wakeups)
    else:
        limits = yield from _limits(candidates, now, wakeups, running, scope.turn)
    claimed: list[Record] = []
    for number, want in enumerate(claim.wants):
        if want.limited:
            claimed += (yield from limits.take(want)) if limits is not None else []
        else:
            earlier = frozenset(record.id for record in claimed)
            claimed += yield from _claim_best(
                claim, want, candidates, now, scope if number == 0 else scope.after(earlier)
            )
    yield from _write(claimed, claim, now)
    due = [] if candidates.next_due is None else [max(0, candidates.next_due - now)]
    if scope.only is not None and len(claimed) < claim.wants[0].limit:
        due.append(scope.look_again)  # others may leave some of what they are about to take
    suspects = yield from _has_suspect(claim.wants, candidates, now)
    if limits is not None:
        under_limits = [want for want in claim.wants if want.limited]
        due += yield from limits.finish(under_limits)
        suspects = suspects or (yield from limits.any_suspect(under_limits))
    return Claimed(claimed, min(due, default=None), suspects, ready)


def _limits(
    candidates: Candidates, now: int, wakeups: list[Document], running: running_counts.Change, turn: LimitTurn
) -> Steps[Limits | None]:
    """The limits after all wake-ups; None if no job is under any."""
    heard = yield from read_limit_news(candidates.paused, candidates.limits, wakeups)
    if heard is None:
        return None
    limits = Limits(heard, now, running, turn)
    yield from limits.open_gates()
    return limits


def promote(limit: int, now: int) -> Steps[list[Record]]:
    """Make due jobs ready, the earliest first."""
    due: Document = {"place": DUE, "order": {"$lte": now}}
    ids = [place["_id"] for place in (yield from find("places", due, {"_id": 1}, sort=IN_ORDER, limit=limit))]
    promoted, _ = yield from read_jobs_in_state(ids, State.SCHEDULED, now, SLIM)
    before = {record.id: copy(record) for record in promoted}
    for record in promoted:
        set_state(record, State.READY)
        record.version += 1
    yield from write(before, promoted)
    yield from notify_limit_claimers((None, record) for record in promoted)
    return promoted


def is_nothing_to_claim(claim: Claim, candidates: Candidates, now: int) -> bool:
    """Whether the candidates show that a claim would find nothing."""
    if candidates.next_due is not None and candidates.next_due <= now:
        return False
    if any(want.limited for want in claim.wants) and not is_quiet(candidates.limits):
        return False
    return not any(candidates.spots(want, alone=alone).names for want in claim.wants for alone in (False, True))


def guess_of(claim: Claim, now: int, scope: ClaimScope) -> Guess:
    """A fast path: what the last claim of this store saw, so that one question finds the best jobs too."""
    if not fast_path.enabled():
        return NO_GUESS._replace(now=now, many=scope.expected.many)
    want = claim.wants[0] if claim.wants else None
    limited = sum(want.limit for want in claim.wants if want.limited)
    gates = {} if scope.turn is None else scope.turn.guess(limited)
    expected = scope.expected
    if want is None or want.limited or want.limit <= 0 or scope.only is not None:
        return Guess(now, NOWHERE, 0, gates, expected.many)
    spots = expected.spots if len(expected.spots.names) <= LANES_AT_ONCE else NOWHERE
    return Guess(now, spots, want.limit + len(scope.others()), gates, expected.many)


def best_positions(want: Want, most: int, *, many: bool) -> Steps[list[Position]]:
    """The positions of the best jobs of a want, and of those that come next."""
    candidates = yield from read_candidates((want,), NO_GUESS._replace(many=many))
    positions, _ = yield from first_positions(candidates.spots(want, alone=want.alone), candidates.paused, {}, most)
    return positions


def _claim_best(claim: Claim, want: Want, candidates: Candidates, now: int, scope: ClaimScope) -> Steps[list[Record]]:
    """The best jobs of the wanted lanes."""
    spots = candidates.spots(want, alone=want.alone)
    if want.limit <= 0 or not spots.names:
        return []
    seen = None
    if want is claim.wants[0]:
        scope.expected.spots = spots
        seen = candidates.best if candidates.best is not None and candidates.best.spots == spots else None
    elif candidates.best is not None and candidates.best.leaves_nothing(spots, scope.earlier):
        return []
    best = yield from _read_best(spots, candidates.paused, want.limit, now, scope, seen)
    return sorted(best, key=lambda record: (-record.priority, record.rank, record.id))


def _write(records: Sequence[Record], claim: Claim, now: int) -> Steps[None]:
    """Write the claim for all wants at once."""
    before = {record.id: copy(record) for record in records}
    for record in records:
        write_claim(record, claim, now)
    yield from write(before, records)


def _read_best(
    spots: Spots, paused: frozenset[str], limit: int, now: int, scope: ClaimScope, seen: Best | None
) -> Steps[list[Record]]:
    """The best jobs that no concurrent claim of this process takes. If one began meanwhile, read further."""
    if seen is not None and (ids := _reserve(seen.ids, limit, scope, all=seen.all)) is not None:
        records, gone = yield from read_jobs_in_state(ids, State.READY, now, read_before=scope.candidates is not None)
        if not gone:
            return records
    while True:
        ids = yield from _find_best_ids(spots, paused, limit, now, scope)
        records, missing = yield from read_jobs_in_state(ids, State.READY, now)
        if not missing:
            return records


def read_jobs_in_state(
    ids: Sequence[str], state: State, now: int, projection: Document = WHOLE, *, read_before: bool = False
) -> Steps[tuple[list[Record], list[str]]]:
    """Read the jobs at some places; also returns the ids of those that are missing or in another state. Removes the places
    of missing jobs, unless the ids were `read_before` this transaction: such jobs may have moved. Unreadable jobs are set
    aside."""
    if not ids:
        return [], []
    found = yield from find("jobs", {"_id": {"$in": list(ids)}}, projection)
    there = [document for document in found if document.get("state") == state.value]
    by_id = {record.id: record for record in (yield from readable(there, now, whole=projection is WHOLE))}
    missing = [id for id in ids if id not in by_id]
    if not read_before:
        yield from forget(missing)
    return [by_id[id] for id in ids if id in by_id], missing


def _find_best_ids(spots: Spots, paused: frozenset[str], limit: int, now: int, scope: ClaimScope) -> Steps[list[str]]:
    condition = not_expired(now)
    if scope.only is not None:
        condition["_id"] = {"$in": list(scope.only)}
    while True:
        enough = limit + len(scope.others())
        found, all = yield from first_ids(spots, paused, condition, enough, in_order=scope.only is None)
        best = _reserve(found, limit, scope, all=all)
        if best is not None:
            return best


def _reserve(found: Sequence[str], limit: int, scope: ClaimScope, *, all: bool) -> list[str] | None:
    """Reserve the first jobs that no concurrent claim of this process takes. None: they are too few and not `all` there
    are. Reserved at once, because another claim may look while this one reads them."""
    others = scope.others()
    best = [id for id in found if id not in others][:limit]
    if len(best) < limit and not all:
        return None
    scope.mine.update(best)
    return best


def _has_suspect(wants: Sequence[Want], candidates: Candidates, now: int) -> Steps[bool]:
    names: dict[str, set[str]] = {}
    for want in wants:
        spots = candidates.spots(want, alone=True)
        names.setdefault(spots.field, set()).update(spots.names)
    for field, ours in names.items():
        suspects, _ = yield from first_ids(
            Spots(field, sorted(ours)), candidates.paused, not_expired(now), 1, in_order=False
        )
        if suspects:
            return True
    return False
