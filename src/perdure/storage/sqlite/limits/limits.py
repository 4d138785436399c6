"""Decides which jobs under limits may start: checks the open gates, best first, and closes those whose limits are used up.

Everything happens under the write lock, so the counts are exact. A claim works in rounds: limits that have room again open
some of their gates, the best open gates are checked, and the jobs that may start are claimed before the next round. A job
is admitted only if it comes before every gate that was not checked, so jobs start in claim order over all gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from perdure.storage.rules.limits import Admitted, ClaimOrder, Gate, admit_jobs, why_closed

from ..connection.work import Work
from . import limit_gates
from .fast_gate import SingleOpenGate, try_fast_gate
from .limit_gates import GateRow, KeyUsage, Waiting, Wanted

CHECKED = 64  # gates in a round
CLOSED_AT_ONCE = 512  # full gates in a round
REOPENED = 16  # gates of one limit in a round
EMPTY_ROUNDS = 3  # rounds that find no job, however many gates are full; the next claim continues


class Suspect(NamedTuple):
    """A suspect under limits. Suspects are few, and have no gates."""

    limits: str
    waiting: Waiting


def admit_in_rounds(work: Work, wanted: Wanted, limit: int, now: int) -> Iterator[list[int]]:
    """The rows of jobs that may start, best first. The caller claims those of a round before it asks for the next."""
    claiming = _Claiming(work, wanted, now)
    empty = 0
    while limit > 0 and empty < EMPTY_ROUNDS and claiming.begin_round():
        admitted = claiming.admit(limit)
        if admitted:
            yield admitted
        limit -= len(admitted)
        empty = 0 if admitted else empty + 1


def next_start(work: Work, wanted: Wanted, now: int, last_gate: SingleOpenGate | None) -> int | None:
    """When the first of the wanted jobs could start: now, or when a rate lets it. `last_gate`: the single open gate from
    which jobs were just claimed, with the room that is left there."""
    single = last_gate if last_gate is not None and last_gate.room > 0 else try_fast_gate(work, wanted, 1, now)
    if single is not None and any(limit_gates.jobs_at(work, [single.gate], 1, now).values()):
        return now
    claiming = _Claiming(work, wanted, now)
    for _ in range(EMPTY_ROUNDS):
        if not claiming.begin_round():
            return claiming.next_opening()
        claiming.admit(0)
        if claiming.busy:
            return now
    return now


class _Claiming:
    """The rounds of one want. `busy`: gates at which another job could start after the last round."""

    def __init__(self, work: Work, wanted: Wanted, now: int) -> None:
        self._work = work
        self._wanted = wanted
        self._now = now
        self._used = KeyUsage(work)
        self._idle: set[int] = set()  # gates at which no job may run now
        self._best: list[GateRow] = []
        self._bound: ClaimOrder | None = None  # the claim order of the first gate that is not checked
        self.busy: list[GateRow] = []
        limit_gates.reopen_after_clock_change(work, now)

    def begin_round(self) -> bool:
        """Find the gates to check. False: there are none."""
        reopened, behind = self._reopen()
        full = self._find_best(CHECKED + 1)
        if full:  # there may be many more of those
            self._find_best(CLOSED_AT_ONCE)
        self._bound = min((order for order in (self._bound, behind) if order is not None), default=None)
        return bool(reopened or full or self._best)

    def _find_best(self, count: int) -> int:
        """Find the best gates among the first `count`, and close those that are full; returns how many were."""
        found = limit_gates.best_open(self._work, self._wanted, count + len(self._idle))
        texts = {gate.limits for gate in found}
        admitted = admit_jobs([Gate(text, ()) for text in texts], self._used.of(texts), 0, self._now)
        self._store(admitted, texts)
        self._best = [gate for gate in found if gate.limits not in admitted.closed and gate.number not in self._idle]
        self._bound = found[-1].order if len(found) == count + len(self._idle) else None
        if len(self._best) > CHECKED:
            self._bound = self._best[CHECKED].order
        return sum(gate.limits in admitted.closed for gate in found)

    def _reopen(self) -> tuple[int, ClaimOrder | None]:
        """Open gates whose limits have room again. Returns how many, and the claim order of the first that stays closed."""
        found = limit_gates.closers_to_check(self._work, CHECKED, self._now)
        used = self._used.of(found)
        why = {closer: why_closed(closer, used, self._now) for closer in found}
        later = {closer: closed for closer, closed in why.items() if closed and closed.opens_at != found[closer]}
        limit_gates.store_closers(self._work, later, self._now)
        opened = [limit_gates.reopen(self._work, closer, REOPENED) for closer in found if why[closer] is None]
        return sum(count for count, _ in opened), min((order for _, order in opened if order), default=None)

    def admit(self, limit: int) -> list[int]:
        """The rows of the jobs at the best gates that may start."""
        checked = self._best[:CHECKED]
        jobs = limit_gates.jobs_at(self._work, checked, limit, self._now) if checked else {}
        empty = {number for number, waiting in jobs.items() if not waiting}
        limit_gates.remove_empty(self._work, empty)
        self._idle |= empty
        waiting_at = {gate: jobs[gate.number] for gate in checked if jobs[gate.number]}
        admitted = self._admit(waiting_at, limit)
        gone = set(admitted)
        left = {gate: (job.order for job in jobs if job.number not in gone) for gate, jobs in waiting_at.items()}
        heads = [(gate, next(orders, None)) for gate, orders in left.items()]
        limit_gates.move_heads(self._work, [(gate, order) for gate, order in heads if order is not None])
        return admitted

    def _admit(self, waiting_at: Mapping[GateRow, Sequence[Waiting]], limit: int) -> list[int]:
        bound = self._bound
        before = [
            Gate(gate.limits, [job.order for job in jobs if bound is None or job.order < bound])
            for gate, jobs in waiting_at.items()
        ]
        texts = {gate.limits for gate in waiting_at}
        admitted = admit_jobs(before, self._used.of(texts), limit, self._now)
        self._store(admitted, texts)
        rows = {job.order[2]: (job.number, gate.limits) for gate, jobs in waiting_at.items() for job in jobs}
        for limits, count in Counter(rows[id][1] for id in admitted.ids).items():
            self._used.add_running(limits, count)
        self.busy = [gate for gate in waiting_at if gate.limits not in admitted.closed]
        return [rows[id][0] for id in admitted.ids]

    def _store(self, admitted: Admitted, texts: Iterable[str]) -> None:
        self._used.store_starts(admitted.starts, texts)
        limit_gates.close(self._work, admitted.closed, self._now)

    def next_opening(self) -> int | None:
        """When a rate opens a gate with a wanted job. It may be too early where very many gates are closed."""
        rates = limit_gates.rates(self._work, CHECKED)
        for closer, opens_at in rates:
            closed = limit_gates.best_closed(self._work, closer, CHECKED)
            asked = [gate for gate in closed if self._wanted.lane(gate.queue, gate.task, gate.routing_key)]
            if len(closed) == CHECKED or (asked and any(limit_gates.jobs_at(self._work, asked, 1, self._now).values())):
                return opens_at
        return rates[-1][1] if len(rates) == CHECKED else None


# ---- suspects --------------------------------------------------------------------------------------
def admit_suspects(work: Work, suspects: Sequence[Suspect], limit: int, now: int) -> list[int]:
    """The rows of the suspects that may start, best first."""
    texts = list(dict.fromkeys(suspect.limits for suspect in suspects))
    waiting = [Gate(text, [suspect.waiting.order for suspect in suspects if suspect.limits == text]) for text in texts]
    used = KeyUsage(work)
    admitted = admit_jobs(waiting, used.of(texts), limit, now)
    used.store_starts(admitted.starts, texts)
    numbers = {suspect.waiting.order[2]: suspect.waiting.number for suspect in suspects}
    return [numbers[id] for id in admitted.ids]


def next_start_of_suspects(work: Work, suspects: Sequence[Suspect], now: int) -> int | None:
    """When the first of these suspects could start."""
    used = KeyUsage(work).of(suspect.limits for suspect in suspects)
    why = [why_closed(suspect.limits, used, now) for suspect in suspects]
    opening = [now if closed is None else closed.opens_at for closed in why]
    return min((at for at in opening if at is not None), default=None)
