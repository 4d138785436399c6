"""Gates: where parked jobs with the same limits wait, as they are stored.

A gate is the parked jobs of one queue, task, routing key and limits. It knows where its best job stands, or better; and it
is open, or closed by the limits that were used up when it was last looked at. So a claim looks at open gates only, best
first, and finds out by the limits that close the others whether one of those may open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec

from perdure.core.job import ANY
from perdure.core.record import ROW_VERSION
from perdure.storage.contract import Want
from perdure.storage.rules.limits import ClaimOrder, Closed, Starts, Use, limits_of, starts_of

from .queries import load
from .records import WHOLE, Many, json_text, lists_of
from .writer import Work

_sql = load("limit_gates", whole=WHOLE, row_version=str(ROW_VERSION))
_FEW_OPEN = _sql["few_open"].replace("{running}", _sql["running"].rstrip(";\n "))
_STARTS = Many(_sql["starts"], 1)
_NOTE_STARTS = Many(_sql["note_starts"], 3, (20, 4, 1))
_CLOSE = Many(_sql["close"], 2, (500, 100, 20, 4, 1))
_NOTE_CLOSERS = Many(_sql["note_closers"], 3, (100, 20, 4, 1))
_MOVE_HEADS = Many(_sql["move_heads"], 4, (20, 4, 1))

GATES_AT_ONCE = (1, 4, 16, 64)
NO_GATE = (None, None, None, None, None, 0, 0)

PAUSED_TOLD = 128  # paused queues that an outlook names; where there are more, the others are asked for


class PausedQueues:
    """The paused queues as one claim sees them: named, or asked for one by one where there are very many."""

    def __init__(self, work: Work, names: Collection[str]) -> None:
        self._work = work
        self._known = dict.fromkeys(names, True)
        self._all_known = len(self._known) <= PAUSED_TOLD

    def __contains__(self, queue: str) -> bool:
        if queue not in self._known:
            self._known[queue] = not self._all_known and bool(self._work.connection.rows(_sql["is_paused"], (queue,)))
        return self._known[queue]

    def __bool__(self) -> bool:
        return any(self._known.values())


class Wanted(NamedTuple):
    """What a want asks for."""

    want: Want
    paused: PausedQueues

    def lane(self, queue: str, task: str, routing_key: str | None) -> bool:
        """Whether it asks for these jobs, and their queue is not paused."""
        return (
            (self.want.queues is None or queue in self.want.queues)
            and self.line(task, routing_key)
            and queue not in self.paused
        )

    def line(self, task: str, routing_key: str | None) -> bool:
        """Whether it asks for these jobs in some queue."""
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
    def place(self) -> ClaimOrder:
        return -self.priority, self.rank, self.head


class Waiting(NamedTuple):
    """A job that waits at a gate: its row, and its place."""

    number: int
    place: ClaimOrder


_waiting = msgspec.json.Decoder(list[tuple[int, Waiting]])


def register_gates(work: Work, ids: Sequence[str]) -> None:
    """These jobs may have been parked: their gates are to be looked at."""
    if ids:
        work.connection.change(_sql["know"], (json_text(ids),))


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
    return nsmallest(count, (GateRow(*row) for row in rows), key=lambda gate: gate.place)


class OpenGates(NamedTuple):
    """Gates where few are open. `others`: there are more than these, or limits that may have room again."""

    open: list[GateRow]
    others: bool
    running: str  # for `KeyUsage`


def few_open(work: Work, wanted: Wanted, now: int) -> OpenGates:
    """The only open gate, if it is wanted, by one question."""
    opening, found, running = work.connection.rows(_FEW_OPEN, (now,))[0]
    gates = [GateRow(*row) for row in lists_of(found)]
    kept = [gate for gate in gates if wanted.lane(gate.queue, gate.task, gate.routing_key)]
    return OpenGates(kept, bool(opening) or len(gates) > 1, running)


def best_closed(work: Work, closer: str, count: int) -> list[GateRow]:
    """The best gates that these limits keep closed."""
    return [GateRow(*row) for row in work.connection.rows(_sql["best_closed"], (closer, count))]


def jobs_at(work: Work, gates: Sequence[GateRow], most: int, now: int) -> dict[int, list[Waiting]]:
    """The best jobs at each gate that may run: as many as could start there, and the one behind them."""
    found: dict[int, list[Waiting]] = {gate.number: [] for gate in gates}
    size = next(size for size in GATES_AT_ONCE if size >= len(gates))
    arms = [(*gate[:5], now, _could_start(gate.limits, most) + 1) for gate in gates]
    parameters = [value for arm in [*arms, *[NO_GATE] * (size - len(gates))] for value in arm]
    for gate, waiting in _waiting.decode(work.connection.value(_places(size), parameters)):
        found[gate].append(waiting)
    return found


def _could_start(limits: str, most: int) -> int:
    bounds = [bound for limit in limits_of(limits) for bound in (limit.most, limit.starts) if bound is not None]
    return min([most, *bounds])


@cache
def _places(size: int) -> str:
    return _sql["all_places"].replace("{places}", " UNION ALL ".join([_sql["places"]] * size))


def move_heads(work: Work, gates: Iterable[tuple[GateRow, ClaimOrder]]) -> None:
    """The best jobs of these gates stand there."""
    rows = [(gate.number, -place[0], place[1], place[2]) for gate, place in gates if gate.place != place]
    _MOVE_HEADS.run(work.connection, rows)


def forget(work: Work, gates: Collection[int]) -> None:
    """Those of these gates that nobody waits at."""
    if gates:
        work.connection.change(_sql["forget"], (json_text(sorted(gates)),))


# ---- open and closed -------------------------------------------------------------------------------
def close(work: Work, closed: dict[str, Closed], now: int) -> None:
    """Gates with these limits let nobody through."""
    closers = {limits: _closer(limits, why.key) for limits, why in closed.items()}
    _CLOSE.run(work.connection, list(closers.items()))
    note_closers(work, {closers[limits]: why for limits, why in closed.items()}, now)


def _closer(limits: str, key: str) -> str:
    """The part of some limits that is about a key: a text like theirs."""
    return json_text([limit for limit in limits_of(limits) if limit.key == key])


def note_closers(work: Work, closers: dict[str, Closed], now: int) -> None:
    _NOTE_CLOSERS.run(work.connection, [(closer, now, why.opens_at) for closer, why in closers.items()])


def closers(work: Work, count: int, now: int) -> dict[str, int | None]:
    """Limits that may have room again, and since when a rate should have some."""
    return dict(work.connection.rows(_sql["closers"], (now, count)))


def rates(work: Work, count: int) -> list[tuple[str, int]]:
    """Limits that a rate keeps closed, and until when."""
    return work.connection.rows(_sql["rates"], (count,))


def reopen(work: Work, closer: str, count: int) -> tuple[int, ClaimOrder | None]:
    """Open the best gates that these limits keep closed; gives how many, and where those begin that stay closed."""
    found = best_closed(work, closer, count + 1)
    opened = [gate.number for gate in found[:count]]
    work.connection.change(_sql["reopen"], (json_text(opened),))
    if len(found) <= count:
        work.connection.change(_sql["forget_closer"], (closer,))
        return len(opened), None
    return len(opened), found[count].place


def mind_the_clock(work: Work, now: int) -> None:
    """When the clock went back, gates that rates have closed since are looked at again."""
    if work.connection.change(_sql["clock_went_back"], (now,)):
        work.connection.change(_sql["reopen_orphans"])


# ---- what is used ----------------------------------------------------------------------------------
class KeyUsage:
    """How much of each key is used: read when it is asked for, and kept up to date by whoever lets jobs through."""

    def __init__(self, work: Work, running: str | None = None) -> None:
        """`running`: what runs, if that was read already."""
        self._work = work
        self._running: Counter[str] = Counter()
        self._starts: dict[str, Starts] = {}
        for limits, jobs in lists_of(work.connection.value(_sql["running"]) if running is None else running):
            self.run(limits, jobs)

    def of(self, texts: Iterable[str]) -> dict[str, Use]:
        """What is used of the keys of these limits."""
        entries = [limit for text in texts for limit in limits_of(text)]
        rated = {limit.key for limit in entries if limit.starts is not None} - self._starts.keys()
        self._starts |= dict.fromkeys(rated, ())
        for key, text in _STARTS.rows(self._work.connection, [(key,) for key in sorted(rated)]):
            self._starts[key] = starts_of(text)
        return {limit.key: Use(self._running[limit.key], self._starts.get(limit.key, ())) for limit in entries}

    def run(self, limits: str, jobs: int = 1) -> None:
        """So many more jobs run under these limits."""
        for limit in limits_of(limits):
            self._running[limit.key] += jobs

    def start(self, starts: dict[str, Starts], texts: Iterable[str]) -> None:
        """Starts of keys as they are now, noted until they are over."""
        if not starts:
            return
        windows: Counter[str] = Counter()
        for limit in (limit for text in texts for limit in limits_of(text)):
            windows[limit.key] = max(windows[limit.key], limit.window or 0)
        rows: list[tuple[Any, ...]] = []
        for key, log in starts.items():
            rows.append((key, json_text(log), (log[-1][0] if log else 0) + windows[key]))
        _NOTE_STARTS.run(self._work.connection, rows)
        self._starts |= starts
