"""Claiming jobs under limits: open gates are looked at, best first, and those that are found to be full are closed.

Everything happens under the write lock, so the counts are exact. It goes in rounds: limits that have room again open some of
their gates, the best open gates are looked at, and who may start is taken before the next round. A job is let through only
if it stands before every gate that was not looked at, so the order is that of a claim over all gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from perdure.storage.rules.limits import Admitted, ClaimOrder, Gate, admit_jobs, limits_of, why_closed

from . import limit_gates
from .limit_gates import GateRow, KeyUsage, Waiting, Wanted
from .writer import Work

LOOKED_AT = 64  # gates in a round
PASSED_BY = 512  # gates that are full, at once
REOPENED = 16  # gates of one key in a round
IN_VAIN = 3  # rounds that find nobody, however many gates are full; the next claim goes on


class Suspect(NamedTuple):
    """A suspect under limits: those are few, and have no gates."""

    limits: str
    waiting: Waiting


def rounds(work: Work, wanted: Wanted, limit: int, now: int) -> Iterator[list[int]]:
    """The rows that may start, best first. Those of a round are to be taken before the next ones are asked for."""
    claiming = _Claiming(work, wanted, now)
    in_vain = 0
    while limit > 0 and in_vain < IN_VAIN and claiming.go_on():
        taken = claiming.let_through(limit)
        if taken:
            yield taken
        limit -= len(taken)
        in_vain = 0 if taken else in_vain + 1


class SingleOpenGate(NamedTuple):
    """The only open gate, and how many may start there."""

    gate: GateRow
    room: int


def wide_gate(work: Work, wanted: Wanted, limit: int, now: int) -> SingleOpenGate | None:
    """The only open gate, if no rate is to be minded, no closed one might open, and there is room for so many."""
    few = limit_gates.few_open(work, wanted, now)
    found = few.open
    if few.others:  # those may be nobody's that is wanted
        found = limit_gates.best_open(work, wanted, 2) if not limit_gates.closers(work, 1, now) else []
    if len(found) != 1:
        return None
    (gate,) = found
    limits = limits_of(gate.limits)
    if any(each.starts is not None for each in limits):
        return None
    used = KeyUsage(work, few.running).of([gate.limits])
    room = min((each.most - used[each.key].running for each in limits if each.most is not None), default=limit)
    return SingleOpenGate(gate, room) if room >= limit else None


def opens_at(work: Work, wanted: Wanted, now: int, wide: SingleOpenGate | None) -> int | None:
    """When the first of the wanted jobs could start: now, or when a rate lets it. `wide`: the gate from which the last jobs
    were taken, with the room that is left there."""
    if wide is None or wide.room < 1:
        wide = wide_gate(work, wanted, 1, now)
    if wide is not None and any(limit_gates.jobs_at(work, [wide.gate], 1, now).values()):
        return now
    claiming = _Claiming(work, wanted, now)
    for _ in range(IN_VAIN):
        if not claiming.go_on():
            return claiming.next_opening()
        claiming.let_through(0)
        if claiming.busy:
            return now
    return now


class _Claiming:
    """One want at work. `busy`: gates at which somebody could start after the last round."""

    def __init__(self, work: Work, wanted: Wanted, now: int) -> None:
        self._work = work
        self._wanted = wanted
        self._now = now
        self._used = KeyUsage(work)
        self._idle: set[int] = set()  # gates at which nobody can run now
        self._best: list[GateRow] = []
        self._bound: ClaimOrder | None = None  # where gates begin that are not looked at
        self.busy: list[GateRow] = []
        limit_gates.mind_the_clock(work, now)

    def go_on(self) -> bool:
        """Whether there are gates that may be open; they are the next to be looked at."""
        reopened, behind = self._reopen()
        full = self._look_for_best(LOOKED_AT + 1)
        if full:  # there may be many more of those
            self._look_for_best(PASSED_BY)
        self._bound = min((place for place in (self._bound, behind) if place is not None), default=None)
        return bool(reopened or full or self._best)

    def _look_for_best(self, count: int) -> int:
        """The best gates, as far as they are among so many and not full; gives how many were full, and are closed now."""
        found = limit_gates.best_open(self._work, self._wanted, count + len(self._idle))
        texts = {gate.limits for gate in found}
        passed = admit_jobs([Gate(text, ()) for text in texts], self._used.of(texts), 0, self._now)
        self._note(passed, texts)
        self._best = [gate for gate in found if gate.limits not in passed.closed and gate.number not in self._idle]
        self._bound = found[-1].place if len(found) == count + len(self._idle) else None
        if len(self._best) > LOOKED_AT:
            self._bound = self._best[LOOKED_AT].place
        return sum(gate.limits in passed.closed for gate in found)

    def _reopen(self) -> tuple[int, ClaimOrder | None]:
        """Open gates whose closing limits have room again; gives how many, and where those begin that stay closed."""
        found = limit_gates.closers(self._work, LOOKED_AT, self._now)
        used = self._used.of(found)
        why = {closer: why_closed(closer, used, self._now) for closer in found}
        later = {closer: closed for closer, closed in why.items() if closed and closed.opens_at != found[closer]}
        limit_gates.note_closers(self._work, later, self._now)
        opened = [limit_gates.reopen(self._work, closer, REOPENED) for closer in found if why[closer] is None]
        return sum(count for count, _ in opened), min((place for _, place in opened if place), default=None)

    def let_through(self, limit: int) -> list[int]:
        """Who may start, of those that wait at the best gates."""
        looked_at = self._best[:LOOKED_AT]
        jobs = limit_gates.jobs_at(self._work, looked_at, limit, self._now) if looked_at else {}
        empty = {number for number, waiting in jobs.items() if not waiting}
        limit_gates.forget(self._work, empty)
        self._idle |= empty
        asked = {gate: jobs[gate.number] for gate in looked_at if jobs[gate.number]}
        taken = self._pass(asked, limit)
        gone = set(taken)
        heads = {gate: (job.place for job in waiting if job.number not in gone) for gate, waiting in asked.items()}
        first = [(gate, next(places, None)) for gate, places in heads.items()]
        limit_gates.move_heads(self._work, [(gate, place) for gate, place in first if place is not None])
        return taken

    def _pass(self, asked: Mapping[GateRow, Sequence[Waiting]], limit: int) -> list[int]:
        bound = self._bound
        before = [
            Gate(gate.limits, [job.place for job in waiting if bound is None or job.place < bound])
            for gate, waiting in asked.items()
        ]
        texts = {gate.limits for gate in asked}
        passed = admit_jobs(before, self._used.of(texts), limit, self._now)
        self._note(passed, texts)
        rows = {job.place[2]: (job.number, gate.limits) for gate, waiting in asked.items() for job in waiting}
        for limits, jobs in Counter(rows[id][1] for id in passed.ids).items():
            self._used.run(limits, jobs)
        self.busy = [gate for gate in asked if gate.limits not in passed.closed]
        return [rows[id][0] for id in passed.ids]

    def _note(self, passed: Admitted, texts: Iterable[str]) -> None:
        self._used.start(passed.starts, texts)
        limit_gates.close(self._work, passed.closed, self._now)

    def next_opening(self) -> int | None:
        """When a rate opens a gate with a job that is wanted; it may be early where very many are closed."""
        rates = limit_gates.rates(self._work, LOOKED_AT)
        for closer, opens_at in rates:
            closed = limit_gates.best_closed(self._work, closer, LOOKED_AT)
            asked = [gate for gate in closed if self._wanted.lane(gate.queue, gate.task, gate.routing_key)]
            if len(closed) == LOOKED_AT or (
                asked and any(limit_gates.jobs_at(self._work, asked, 1, self._now).values())
            ):
                return opens_at
        return rates[-1][1] if len(rates) == LOOKED_AT else None


# ---- suspects --------------------------------------------------------------------------------------
def let_suspects_through(work: Work, suspects: Sequence[Suspect], limit: int, now: int) -> list[int]:
    """Those of these that may start, best first."""
    texts = list(dict.fromkeys(suspect.limits for suspect in suspects))
    waiting = [Gate(text, [suspect.waiting.place for suspect in suspects if suspect.limits == text]) for text in texts]
    used = KeyUsage(work)
    passed = admit_jobs(waiting, used.of(texts), limit, now)
    used.start(passed.starts, texts)
    numbers = {suspect.waiting.place[2]: suspect.waiting.number for suspect in suspects}
    return [numbers[id] for id in passed.ids]


def suspects_open_at(work: Work, suspects: Sequence[Suspect], now: int) -> int | None:
    """When the first of these could start."""
    used = KeyUsage(work).of(suspect.limits for suspect in suspects)
    why = [why_closed(suspect.limits, used, now) for suspect in suspects]
    opening = [now if closed is None else closed.opens_at for closed in why]
    return min((at for at in opening if at is not None), default=None)
