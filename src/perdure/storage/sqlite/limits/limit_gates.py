"""Stores gates: the parked jobs of one queue, task, routing key and limits.

A gate knows the claim order of its best job, or a better one. It is open, or closed by the limits that were used up when a
claim last checked it. So a claim checks only the open gates, best first, and the limits that close the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec

from perdure.core.job import ANY
from perdure.storage.contract import Want
from perdure.storage.rules.limits import ClaimOrder, Closed, Starts, Use, limits_of, starts_of

from ..connection.work import Work
from ..queries import load
from ..reading.records import MAY_RUN, WHOLE, Many, json_text, lists_of

_sql = load("limit_gates", whole=WHOLE, may_run=MAY_RUN.replace(":now", "?"))
COUNT_RUNNING = _sql["running"]
_STARTS = Many(_sql["starts"], 1)
_STORE_STARTS = Many(_sql["store_starts"], 3, (20, 4, 1))
_CLOSE = Many(_sql["close"], 2, (500, 100, 20, 4, 1))
_STORE_CLOSERS = Many(_sql["store_closers"], 3, (100, 20, 4, 1))
_MOVE_HEADS = Many(_sql["move_heads"], 4, (20, 4, 1))

GATES_AT_ONCE = (1, 4, 16, 64)
NO_GATE = (None, None, None, None, None, 0, 0)

PAUSED_READ = 128  # paused queues that the state of a claim names; if there are more, it asks for the others one by one


class PausedQueues:
    """The paused queues as one claim sees them. If there are very many, it asks for single ones."""

    def __init__(self, work: Work, names: Collection[str]) -> None:
        self._work = work
        self._known = dict.fromkeys(names, True)
        self._all_known = len(self._known) <= PAUSED_READ

    def __contains__(self, queue: str) -> bool:
        if queue not in self._known:
            self._known[queue] = not self._all_known and bool(self._work.connection.rows(_sql["is_paused"], (queue,)))
        return self._known[queue]

    def __bool__(self) -> bool:
        return any(self._known.values())


class Wanted(NamedTuple):
    """A want, and the queues that are paused."""

    want: Want
    paused: PausedQueues

    def lane(self, queue: str, task: str, routing_key: str | None) -> bool:
        """Whether it asks for the jobs of this lane, and their queue is not paused."""
        return (
            (self.want.queues is None or queue in self.want.queues)
            and self.line(task, routing_key)
            and queue not in self.paused
        )

    def line(self, task: str, routing_key: str | None) -> bool:
        """Whether it asks for the jobs of this line in any queue."""
        routing = self.want.routing
        return (self.want.tasks is None or task in self.want.tasks) and (routing is ANY or routing == routing_key)


class GateRow(NamedTuple):
    """A gate as it is stored."""

    number: int
    limits: str
    queue: str
    task: str
    routing_key: str | None
    priority: int
    rank: int
    head: str

    @property
    def order(self) -> ClaimOrder:
        return -self.priority, self.rank, self.head


class Waiting(NamedTuple):
    """A job that waits at a gate: the number of its row, and its claim order."""

    number: int
    order: ClaimOrder


_waiting = msgspec.json.Decoder(list[tuple[int, Waiting]])


def register_gates(work: Work, ids: Sequence[str]) -> None:
    """Make sure that there are gates for those of these jobs that are parked."""
    if ids:
        work.connection.change(_sql["register"], (json_text(ids),))


def best_open(work: Work, wanted: Wanted, count: int) -> list[GateRow]:
    """The best open gates."""
    if wanted.want.queues is None:
        lines = [line for line in lists_of(work.connection.value(_sql["lines"])) if wanted.line(*line)]
        rows = [row for line in lines for row in work.connection.rows(_sql["best_open_of_line"], (*line, count))]
    else:
        queues = [queue for queue in dict.fromkeys(wanted.want.queues) if queue not in wanted.paused]
        found = [lists_of(work.connection.value(_sql["lanes_of_queue"], (queue,))) for queue in queues]
        lanes = [lane for lanes in found for lane in lanes if wanted.lane(*lane)]
        rows = [row for lane in lanes for row in work.connection.rows(_sql["best_open"], (*lane, count))]
    return nsmallest(count, (GateRow(*row) for row in rows), key=lambda gate: gate.order)


def best_closed(work: Work, closer: str, count: int) -> list[GateRow]:
    """The best of the gates that these limits close."""
    return [GateRow(*row) for row in work.connection.rows(_sql["best_closed"], (closer, count))]


def jobs_at(work: Work, gates: Sequence[GateRow], most: int, now: int) -> dict[int, list[Waiting]]:
    """The best jobs at each gate that may run: as many as could start there, and one more."""
    found: dict[int, list[Waiting]] = {gate.number: [] for gate in gates}
    size = next(size for size in GATES_AT_ONCE if size >= len(gates))
    arms = [(*gate[:5], now, _could_start(gate.limits, most) + 1) for gate in gates]
    parameters = [value for arm in [*arms, *[NO_GATE] * (size - len(gates))] for value in arm]
    for gate, waiting in _waiting.decode(work.connection.value(_jobs_at(size), parameters)):
        found[gate].append(waiting)
    return found


def _could_start(limits: str, most: int) -> int:
    bounds = [bound for limit in limits_of(limits) for bound in (limit.most, limit.starts) if bound is not None]
    return min([most, *bounds])


@cache
def _jobs_at(size: int) -> str:
    return _sql["jobs_at_gates"].replace("{gates}", " UNION ALL ".join([_sql["jobs_at_gate"]] * size))


def move_heads(work: Work, gates: Iterable[tuple[GateRow, ClaimOrder]]) -> None:
    """Store the claim order of the best jobs of these gates."""
    rows = [(gate.number, -order[0], order[1], order[2]) for gate, order in gates if gate.order != order]
    _MOVE_HEADS.run(work.connection, rows)


def remove_empty(work: Work, gates: Collection[int]) -> None:
    """Remove those of these gates at which no job waits."""
    if gates:
        work.connection.change(_sql["remove_empty"], (json_text(sorted(gates)),))


# ---- open and closed -------------------------------------------------------------------------------
def close(work: Work, closed: dict[str, Closed], now: int) -> None:
    """Close the gates with these limits."""
    closers = {limits: _closer(limits, why.key) for limits, why in closed.items()}
    _CLOSE.run(work.connection, list(closers.items()))
    store_closers(work, {closers[limits]: why for limits, why in closed.items()}, now)


def _closer(limits: str, key: str) -> str:
    """The part of some limits that is about a key: a text like theirs."""
    return json_text([limit for limit in limits_of(limits) if limit.key == key])


def store_closers(work: Work, closers: dict[str, Closed], now: int) -> None:
    _STORE_CLOSERS.run(work.connection, [(closer, now, why.opens_at) for closer, why in closers.items()])


def closers_to_check(work: Work, count: int, now: int) -> dict[str, int | None]:
    """The limits that may have room again, and when a rate should have had some."""
    return dict(work.connection.rows(_sql["closers"], (now, count)))


def rates(work: Work, count: int) -> list[tuple[str, int]]:
    """Limits that a rate keeps closed, and until when, the first to open first."""
    return work.connection.rows(_sql["rates"], (count,))


def reopen(work: Work, closer: str, count: int) -> tuple[int, ClaimOrder | None]:
    """Open the best gates that these limits close. Returns how many, and the claim order of the first that stays closed."""
    found = best_closed(work, closer, count + 1)
    opened = [gate.number for gate in found[:count]]
    work.connection.change(_sql["reopen"], (json_text(opened),))
    if len(found) <= count:
        work.connection.change(_sql["remove_closer"], (closer,))
        return len(opened), None
    return len(opened), found[count].order


def reopen_after_clock_change(work: Work, now: int) -> None:
    """Open the gates that rates have closed at a later time than now: the clock went back."""
    if work.connection.change(_sql["clock_went_back"], (now,)):
        work.connection.change(_sql["reopen_orphans"])


# ---- use of keys ----------------------------------------------------------------------------------
class KeyUsage:
    """How much of each limit key is used. The caller adds the jobs that it starts."""

    def __init__(self, work: Work, running: str | None = None) -> None:
        """`running`: the answer of `COUNT_RUNNING`, if it was read already."""
        self._work = work
        self._running: Counter[str] = Counter()
        self._starts: dict[str, Starts] = {}
        for limits, jobs in lists_of(work.connection.value(_sql["running"]) if running is None else running):
            self.add_running(limits, jobs)

    def of(self, texts: Iterable[str]) -> dict[str, Use]:
        """The use of the keys of these limits."""
        entries = [limit for text in texts for limit in limits_of(text)]
        rated = {limit.key for limit in entries if limit.starts is not None} - self._starts.keys()
        self._starts |= dict.fromkeys(rated, ())
        for key, text in _STARTS.rows(self._work.connection, [(key,) for key in sorted(rated)]):
            self._starts[key] = starts_of(text)
        return {limit.key: Use(self._running[limit.key], self._starts.get(limit.key, ())) for limit in entries}

    def add_running(self, limits: str, jobs: int = 1) -> None:
        """Add so many running jobs under these limits."""
        for limit in limits_of(limits):
            self._running[limit.key] += jobs

    def store_starts(self, starts: dict[str, Starts], texts: Iterable[str]) -> None:
        """Store the starts of keys under a rate, for as long as they count."""
        if not starts:
            return
        windows: Counter[str] = Counter()
        for limit in (limit for text in texts for limit in limits_of(text)):
            windows[limit.key] = max(windows[limit.key], limit.window or 0)
        rows: list[tuple[Any, ...]] = []
        for key, log in starts.items():
            rows.append((key, json_text(log), (log[-1][0] if log else 0) + windows[key]))
        _STORE_STARTS.run(self._work.connection, rows)
        self._starts |= starts
