"""Fast path: a claim of limited jobs where a single gate is open, no rate applies, and its limits have room for all.

Such a claim reads the gate and the running jobs by one statement, and then takes the best jobs of the gate as it does
those of a lane.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.storage.rules import fast_path
from perdure.storage.rules.limits import limits_of

from ..connection.work import Work
from ..queries import load
from ..reading.records import lists_of
from .limit_gates import COUNT_RUNNING, GateRow, KeyUsage, Wanted, best_open, closers_to_check

_OPEN_GATES = load("fast_gate", running=COUNT_RUNNING)["open_gates"]


class SingleOpenGate(NamedTuple):
    """The only open gate, and how many jobs may start there."""

    gate: GateRow
    room: int


def try_fast_gate(work: Work, wanted: Wanted, limit: int, now: int) -> SingleOpenGate | None:
    """The only open gate, if so many jobs may start there at once. None: use the general path."""
    if not fast_path.enabled():
        return None
    may_open, text, running = work.connection.rows(_OPEN_GATES, (now,))[0]
    gates = [GateRow(*row) for row in lists_of(text)]
    found = [gate for gate in gates if wanted.lane(gate.queue, gate.task, gate.routing_key)]
    if may_open or len(gates) > 1:  # perhaps none of the others is wanted
        found = [] if closers_to_check(work, 1, now) else best_open(work, wanted, 2)
    if len(found) != 1:
        return None
    (gate,) = found
    limits = limits_of(gate.limits)
    if any(each.starts is not None for each in limits):
        return None
    used = KeyUsage(work, running).of([gate.limits])
    room = min((each.most - used[each.key].running for each in limits if each.most is not None), default=limit)
    return SingleOpenGate(gate, room) if room >= limit else None
