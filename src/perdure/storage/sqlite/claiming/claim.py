"""Claims jobs: resolves edges, promotes due jobs, and takes the best jobs for each want."""

from __future__ import annotations

from typing import NamedTuple

from perdure.storage.contract import Claim, Want

from ..connection.work import Work
from ..edges.resolve_edges import resolve_edges
from ..limits import limits
from ..limits.fast_gate import SingleOpenGate, try_fast_gate
from ..limits.limit_gates import PAUSED_READ, GateRow, PausedQueues, Waiting, Wanted, register_gates, remove_empty
from ..limits.limits import Suspect
from ..queries import load
from ..reading.records import MAY_RUN, WHOLE, lists_of
from .claimed_rows import ClaimedRows, Source, as_many_as_fit, best_of, by_number, start, start_all
from .fast_claim import try_fast_claim
from .lanes import LANES_READ, Lanes, best_merged

_sql = load("claim", whole=WHOLE, may_run=MAY_RUN, lanes_read=str(LANES_READ + 1), paused_read=str(PAUSED_READ + 1))


class ClaimState(NamedTuple):
    """What a claim must know first."""

    next_due: int | None
    paused: PausedQueues
    has_suspects: bool
    unresolved: bool
    lanes: Lanes


class Claimed(NamedTuple):
    rows: list[ClaimedRows]
    next_due: int | None
    has_suspects: bool
    unresolved: bool


def claim_jobs(work: Work, claim: Claim, now: int, chunk: int) -> Claimed:
    """Resolve edges, promote due jobs, then take jobs for each want in turn."""
    state = _read_state(work)
    if state.unresolved:
        resolve_edges(work, chunk, now)
        state = _read_state(work)
    if state.next_due is not None and state.next_due <= now:
        promote(work, chunk, now)
        state = _read_state(work)
    rows: list[ClaimedRows] = []
    last_gate: SingleOpenGate | None = None
    has_more = False  # the next claim may find jobs that this one did not reach
    for want in claim.wants:
        if want.limit <= 0:
            continue
        if want.limited:
            taken, last_gate = _take_limited(work, claim, want, state, now)
            rows += taken
        elif state.lanes.skip_paused(want, now):
            rows += _take(work, claim, want, state, now)
        else:
            has_more = True
    limited = [want for want in claim.wants if want.limited]
    if len(limited) > 1:
        last_gate = None  # it need not be what the other wants find
    due = [now if has_more else state.next_due, *(_next_start(work, want, state, now, last_gate) for want in limited)]
    next_due = min((max(0, at - now) for at in due if at is not None), default=None)
    has_suspects = state.has_suspects and any(_suspects(work, want, state, now) for want in claim.wants)
    return Claimed(rows, next_due, has_suspects, state.unresolved)


def promote(work: Work, limit: int, now: int) -> int:
    """Make due jobs ready."""
    queues, limited = work.connection.rows(_sql["due"], (now, limit))[0]
    if queues == "[]":
        return 0
    work.ready.update(lists_of(queues))
    promoted = work.connection.change(_sql["promote"], (now, limit))
    register_gates(work, lists_of(limited))
    return promoted


def _read_state(work: Work) -> ClaimState:
    next_due, paused_text, has_suspects, unresolved, lanes = work.connection.rows(_sql["state"])[0]
    paused = PausedQueues(work, lists_of(paused_text))
    found = [tuple(lane) for lane in lists_of(lanes)]
    return ClaimState(next_due, paused, bool(has_suspects), bool(unresolved), Lanes(work, found, paused))


# ---- jobs without limits ---------------------------------------------------------------------------
def _take(work: Work, claim: Claim, want: Want, state: ClaimState, now: int) -> list[ClaimedRows]:
    return start(
        work, claim, as_many_as_fit(work, lambda limit: _best(work, claim, want, state, limit, now), want.limit), now
    )


def _best(work: Work, claim: Claim, want: Want, state: ClaimState, limit: int, now: int) -> ClaimedRows:
    """The best jobs for a want."""
    if want.alone:
        return by_number(work, claim, [one.waiting.number for one in _suspects(work, want, state, now)[:limit]], now)
    if state.lanes.uses_lines(want):
        return best_merged(work, claim, "line", state.lanes.lines(want), limit, now)
    lanes = state.lanes.lanes(want)
    if len(lanes) == 1:
        return _best_of_source(work, claim, Source(None, *lanes[0]), limit, now)
    return best_merged(work, claim, "lane", lanes, limit, now)


def _best_of_source(work: Work, claim: Claim, source: Source, limit: int, now: int) -> ClaimedRows:
    return try_fast_claim(work, claim, source, limit, now) or best_of(work, claim, source, limit, now)


def _suspects(work: Work, want: Want, state: ClaimState, now: int) -> list[Suspect]:
    """Suspects that a want with `alone` would get, best first."""
    if not state.has_suspects:
        return []
    rows = lists_of(work.connection.value(_sql["suspects"], {"limited": int(want.limited), "now": now}))
    return [
        Suspect(limits_text or "", Waiting(number, (-priority, rank, id)))
        for number, priority, rank, id, limits_text, *lane in rows
        if Wanted(want, state.paused).lane(*lane)
    ]


# ---- jobs under limits -----------------------------------------------------------------------------
def _take_limited(
    work: Work, claim: Claim, want: Want, state: ClaimState, now: int
) -> tuple[list[ClaimedRows], SingleOpenGate | None]:
    """Take limited jobs; returns also the gate that all of them came from, if the fast path has found a single one."""
    wanted = Wanted(want, state.paused)
    if want.alone:
        numbers = limits.admit_suspects(work, _suspects(work, want, state, now), want.limit, now)
        return start_all(work, claim, numbers, now), None
    single = try_fast_gate(work, wanted, want.limit, now)
    if single is not None:
        taken = _take_at_gate(work, claim, single.gate, want.limit, now)
        return taken, single._replace(room=single.room - want.limit)
    taken = []
    for numbers in limits.admit_in_rounds(work, wanted, want.limit, now):
        taken += start_all(work, claim, numbers, now)
    return taken, None


def _take_at_gate(work: Work, claim: Claim, gate: GateRow, limit: int, now: int) -> list[ClaimedRows]:
    """Take the best jobs of a gate that has room for so many."""
    source = Source(gate.limits, gate.queue, gate.task, gate.routing_key)
    rows = as_many_as_fit(work, lambda limit: _best_of_source(work, claim, source, limit, now), limit)
    if not rows:
        remove_empty(work, [gate.number])
    return start(work, claim, rows, now)


def _next_start(work: Work, want: Want, state: ClaimState, now: int, last_gate: SingleOpenGate | None) -> int | None:
    """When a limited job could start that this want asks for."""
    if want.alone:
        return limits.next_start_of_suspects(work, _suspects(work, want, state, now), now)
    return limits.next_start(work, Wanted(want, state.paused), now, last_gate)
