"""Claiming: the best jobs over all wanted lanes.

A lane is the ready jobs of one queue, task and routing key; the claim index keeps each in claim order. SQLite merges
the lanes of a compound SELECT by their heads and stops at the limit, so a claim reads as many rows as it takes plus
one per lane, whatever waits behind or beside them. Jobs under limits wait elsewhere: see `limits`.

**Many lanes.** A store with very many queues has as many lanes. There a claim for every queue goes along lines instead: the
ready jobs of one task and routing key, in whatever queue. They have an index of their own, which the first claim that meets
more than `LANES_TOLD` lanes makes; a store with few queues does not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from perdure.core.record import ROW_VERSION, Record
from perdure.storage.contract import Claim, Want
from perdure.storage.rules.unreadable import LARGEST

from . import limits
from .driver import TOOBIG
from .fast_claim import OF_LANE, Place, Usual, asked, best, named, read
from .limit_gates import PAUSED_TOLD, GateRow, PausedQueues, Waiting, Wanted, forget, register_gates
from .limits import SingleOpenGate, Suspect
from .queries import load
from .records import FIELDS, WHOLE, column_of, json_text, lists_of, literal, records_of, value_of
from .resolve_edges import settle
from .writer import Work

LANES_AT_ONCE = (2, 4, 8, 16, 32, 64, 128)  # few sizes, so that few statements; SQLite's own limit is 500
LANES_TOLD = 128  # lanes that an outlook tells of; where there are more, it tells of one more
NAMES = {"lane": ("queue", "task", "routing_key"), "line": ("task", "routing_key")}
HELD_UP_AT_ONCE = 20_000  # jobs of paused queues that one claim takes out of the lines

# what a claimed row says in place of what it said before
_ONCE_CLAIMED = {
    "state": "'running'",
    "version": f"min(job.version, {LARGEST}) + 1",
    "attempt": f"min(job.attempt, {LARGEST}) + 1",
    "started_at": "NULL",
    "finished_at": "NULL",
    "prune_at": "NULL",
    "keep_last": "NULL",
    "stamp": ":stamp",
    "leased_by": ":worker",
    "leased_until": f"min(job.lease, {LARGEST}) + :now",
    "parked": "0",
    "holds_key": "CASE body.unique_scope WHEN 'waiting' THEN 0 ELSE job.holds_key END",
}
# fields from here on are left out where they say what a record says without them, as those of nearly every job do
_RARE = FIELDS[FIELDS.index("suspect") :]


def _claimed() -> str:
    """The record of a claimed row as an expression: a JSON array."""
    values = [_ONCE_CLAIMED.get(name) or value_of(name, column_of) for name in FIELDS]
    usual = dict(zip(_RARE, Record.__struct_defaults__[-len(_RARE) :], strict=True))
    unset = ", ".join(column_of(name) for name, default in usual.items() if default is None)
    as_usual = [f"{column_of(name)} = {literal(default)}" for name, default in usual.items() if default is not None]
    return (
        f"CASE WHEN coalesce({unset}) IS NULL AND {' AND '.join(as_usual)} "
        f"THEN json_array({', '.join(values[: -len(_RARE)])}) ELSE json_array({', '.join(values)}) END"
    )


_sql = load(
    "claim",
    claimed=_claimed(),
    whole=WHOLE,
    row_version=str(ROW_VERSION),
    lanes_told=str(LANES_TOLD + 1),
    paused_told=str(PAUSED_TOLD + 1),
)
# the outlook, and the best of a lane as the same answer
_OUTLOOK_AND_BEST = f"{_sql['outlook']}, best.* FROM ({OF_LANE}) AS best"

Lane = tuple[str, str, str | None]  # queue, task, routing key
Line = tuple[str, str | None]  # task, routing key


class ClaimState(NamedTuple):
    next_due: int | None
    paused: PausedQueues
    suspects: bool
    limited: bool
    unresolved: bool
    lanes: list[Lane]


class PrefetchedLane(NamedTuple):
    """The best jobs of the lane that was claimed from last, read together with the outlook: nearly always that is the lane
    to claim from, and a question is saved."""

    place: Place
    limit: int
    row: tuple[Any, ...]


Taken = bytes | Usual  # claimed jobs as texts, to be read by the loop


class Part(NamedTuple):
    """Jobs that were claimed by one statement: the numbers of their rows, a JSON array, and what they are."""

    numbers: str
    taken: Taken

    def records(self) -> list[Record]:
        """Called by the loop, because the writer has other things to do. Flawed, if one of the rows cannot be read: then all
        of them are to be sorted out."""
        return records_of(self.taken) if isinstance(self.taken, bytes) else self.taken.records()


class Claimed(NamedTuple):
    parts: list[Part]
    next_due: int | None
    suspects: bool
    unresolved: bool


def claim(work: Work, claim: Claim, now: int, chunk: int) -> Claimed:
    """Resolve edges, promote due jobs, then claim jobs for each want in turn."""
    outlook, guess = _look_out_and_guess(work, claim.wants[0], now) if claim.wants else (_look_out(work), None)
    work.known.limited = outlook.limited
    if outlook.unresolved:
        settle(work, chunk, now)
        outlook, guess = _look_out(work), None
    if outlook.next_due is not None and outlook.next_due <= now:
        promote(work, chunk, now)
        outlook, guess = _look_out(work), None
    taken: list[Part] = []
    wide: SingleOpenGate | None = None
    more = False  # the next claim may find jobs that this one did not reach
    for want in claim.wants:
        if want.limit > 0:
            if want.limited:
                texts, wide = _take_limited(work, claim, want, outlook, now)
                work.known.limited |= bool(texts)
            elif _hold_up(work, want, outlook, now):
                texts = _take(work, claim, want, outlook, guess, now)
            else:
                texts, more = [], True
            taken += texts
        guess = None  # it was read before anything was taken
    under_limits = [want for want in claim.wants if want.limited]
    if len(under_limits) > 1:
        wide = None  # what was found for the last need not hold for the others
    due = [now if more else outlook.next_due, *(_opens_at(work, want, outlook, now, wide) for want in under_limits)]
    next_due = min((max(0, at - now) for at in due if at is not None), default=None)
    suspects = outlook.suspects and _any_suspect(work, claim.wants, outlook, now)
    return Claimed(taken, next_due, suspects, outlook.unresolved)


def promote(work: Work, limit: int, now: int) -> int:
    """Make due jobs ready."""
    queues, under_limits = work.connection.rows(_sql["due"], (now, limit))[0]
    if queues == "[]":
        return 0
    work.ready.update(lists_of(queues))
    promoted = work.connection.change(_sql["promote"], (now, limit))
    register_gates(work, lists_of(under_limits))
    return promoted


def _look_out_and_guess(work: Work, want: Want, now: int) -> tuple[ClaimState, PrefetchedLane | None]:
    """The outlook, and what the first want will probably get."""
    place = work.known.lane
    parameters = None
    if place is not None and not want.limited and not want.alone and want.limit > 0:
        parameters = (
            asked(work, place, want.limit, now) if Wanted(want, PausedQueues(work, ())).lane(*place[1:]) else None
        )
    if place is None or parameters is None:
        return _look_out(work), None
    try:
        row = work.connection.rows(_OUTLOOK_AND_BEST, parameters)[0]
    except work.error as error:
        if work.code(error) != TOOBIG:
            raise
        return _look_out(work), None
    return _outlook(work, row[:6]), PrefetchedLane(place, want.limit, row[6:])


def _look_out(work: Work) -> ClaimState:
    return _outlook(work, work.connection.rows(_sql["outlook"])[0])


def _outlook(work: Work, row: tuple[Any, ...]) -> ClaimState:
    next_due, paused, suspects, limited, unresolved, lanes = row
    return ClaimState(
        next_due,
        PausedQueues(work, lists_of(paused)),
        bool(suspects),
        bool(limited),
        bool(unresolved),
        [tuple(lane) for lane in lists_of(lanes)],
    )


def _take(
    work: Work, claim: Claim, want: Want, outlook: ClaimState, guess: PrefetchedLane | None, now: int
) -> list[Part]:
    def best_of_all(limit: int) -> tuple[str, Taken]:
        return _best(work, claim, want, outlook, guess, limit, now)

    numbers, taken = _as_many_as_fit(work, best_of_all, want.limit)
    if numbers == "[]":
        return []
    _let_run(work, claim, numbers, taken, now, "take_from_lane")
    return [Part(numbers, taken)]


def _let_run(work: Work, claim: Claim, numbers: str, taken: Taken, now: int, usual: str) -> None:
    after = (claim.stamp, claim.worker, now)
    row = _row_of(taken.numbers) if isinstance(taken, Usual) and all(taken.shorts) else None
    if row is not None:
        work.connection.change(_sql[usual], (*after, *row))
    else:
        work.connection.change(_sql["take"], (*after, numbers))


def _row_of(numbers: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of these, if they are all that are between them."""
    first, last = min(numbers), max(numbers)
    return (first, last) if last - first + 1 == len(numbers) else None


def _as_many_as_fit(work: Work, best: Callable[[int], tuple[str, Taken]], limit: int) -> tuple[str, Taken]:
    """The best jobs, fewer where all together are too large for one text; the rest is for the next claim."""
    while True:
        try:
            return best(limit)
        except work.error as error:
            if work.code(error) != TOOBIG or limit == 1:
                raise
            limit = max(1, limit // 8)


def _best(
    work: Work, claim: Claim, want: Want, outlook: ClaimState, guess: PrefetchedLane | None, limit: int, now: int
) -> tuple[str, Taken]:
    if want.alone:
        numbers = [suspect.waiting.number for suspect in _suspects(work, want, outlook, now)[:limit]]
        return _by_number(work, claim, numbers, now)
    if _goes_along_lines(want, outlook):
        lines = _lines_of(work, want, outlook)
        return _best_merged(work, claim, "line", lines, limit, now)
    lanes = _lanes_of(work, want, outlook)
    if not lanes:
        return "[]", b"[]"
    work.known.lane = place = (None, *lanes[0]) if len(lanes) == 1 else None
    if place is not None:
        usual = _usual(work, claim, place, limit, now, guess)
        return usual or _one_row(work, _sql["best_of_lane"], _held(claim, now) | named(place) | {"limit": limit})
    return _best_merged(work, claim, "lane", lanes, limit, now)


def _by_number(work: Work, claim: Claim, numbers: Sequence[int], now: int) -> tuple[str, bytes]:
    """Jobs by the numbers of their rows, as they will be once claimed."""
    return _one_row(work, _sql["by_number"], _held(claim, now) | {"numbers": json_text(numbers)})


def _held(claim: Claim, now: int) -> dict[str, Any]:
    """What a claim writes into each row, as parameters of a statement."""
    return {"stamp": claim.stamp, "worker": claim.worker, "now": now}


def _lanes_of(work: Work, want: Want, outlook: ClaimState) -> list[Lane]:
    """The lanes that a want asks for."""
    lanes: Sequence[Lane] = outlook.lanes
    if len(lanes) > LANES_TOLD:  # the outlook does not tell of all
        queues = (None,) if want.queues is None else dict.fromkeys(want.queues)
        lanes = [tuple(lane) for queue in queues for lane in lists_of(work.connection.value(_sql["lanes"], (queue,)))]
    return [lane for lane in lanes if Wanted(want, outlook.paused).lane(*lane)]


def _goes_along_lines(want: Want, outlook: ClaimState) -> bool:
    return len(outlook.lanes) > LANES_TOLD and want.queues is None


def _lines_of(work: Work, want: Want, outlook: ClaimState) -> list[Line]:
    """The lines that a want of every queue asks for."""
    if not work.connection.rows(_sql["has_lines"]):
        work.connection.rows(_sql["make_lines"])
    wanted = Wanted(want, outlook.paused)
    lines: list[Line] = [tuple(line) for line in lists_of(work.connection.value(_sql["lines"]))]
    return [line for line in lines if wanted.line(*line)]


def _hold_up(work: Work, want: Want, outlook: ClaimState, now: int) -> bool:
    """Where a want goes along lines, let no claim read the jobs of paused queues that stand first there. Gives whether as
    many jobs as are wanted stand before those of paused queues now; if not, the next claim goes on."""
    if not outlook.paused or not _goes_along_lines(want, outlook) or want.alone:
        return True
    lines = _lines_of(work, want, outlook)
    limit = window = want.limit
    held_up = 0
    while held_up < HELD_UP_AT_ONCE:
        first = _best_of_many(work, "line", lines, window, now)
        found = lists_of(work.connection.value(_sql["in_paused_queues"], (json_text(first),)))
        if not set(found) & set(first[:limit]):
            return True
        work.connection.change(_sql["hold_up"], (json_text(found),))
        held_up += len(found)
        window = min(4 * window, HELD_UP_AT_ONCE)
    return False


def _best_merged(
    work: Work, claim: Claim, kind: str, lanes: Sequence[Lane | Line], limit: int, now: int
) -> tuple[str, bytes]:
    """The best jobs of several lanes or lines, merged by their heads."""
    if not lanes:
        return "[]", b"[]"
    if len(lanes) <= LANES_AT_ONCE[-1]:
        size, parameters = _arms(kind, lanes)
        return _one_row(work, _best_of_lanes(kind, size), _held(claim, now) | parameters | {"limit": limit})
    return _by_number(work, claim, _best_of_many(work, kind, lanes, limit, now), now)


def _usual(
    work: Work, claim: Claim, place: Place, limit: int, now: int, guess: PrefetchedLane | None = None
) -> tuple[str, Usual] | None:
    """The best jobs of a lane or gate in few words, if that can be done."""
    if guess is not None and (guess.place, guess.limit) == (place, limit):
        found = read(work, claim, place, guess.row, now)
    else:
        found = best(work, claim, place, limit, now)
    if found is None:
        return None
    numbers, usual, others = found
    if others:
        usual = usual._replace(others=_by_number(work, claim, others, now)[1])
    return numbers, usual


def _one_row(work: Work, statement: str, parameters: dict[str, Any]) -> tuple[str, bytes]:
    numbers, texts = work.connection.rows(statement, parameters)[0]
    return numbers, texts


def _best_of_many(work: Work, kind: str, lanes: Sequence[Lane | Line], limit: int, now: int) -> list[int]:
    """More lanes than one statement can merge: group by group, then the best of all groups."""
    heads: list[tuple[int, int, int, str]] = []
    most = LANES_AT_ONCE[-1]
    for begin in range(0, len(lanes), most):
        size, parameters = _arms(kind, lanes[begin : begin + most])
        heads += work.connection.rows(_heads_of_lanes(kind, size), parameters | {"now": now, "limit": limit})
        heads = sorted(heads, key=lambda head: (-head[1], head[2], head[3]))[:limit]
    return [head[0] for head in heads]


@cache
def _best_of_lanes(kind: str, size: int) -> str:
    return _sql["best_of_lanes"].replace("{lanes}", _merged(kind, size))


@cache
def _heads_of_lanes(kind: str, size: int) -> str:
    return f"{_merged(kind, size)} ORDER BY priority DESC, rank, id LIMIT :limit"


def _merged(kind: str, size: int) -> str:
    return " UNION ALL ".join(_sql[kind].replace("{lane}", str(number)) for number in range(size))


@cache
def _names(kind: str, size: int) -> list[str]:
    """The parameters of so many merged lanes or lines."""
    return [f"{name}{number}" for number in range(size) for name in NAMES[kind]]


def _arms(kind: str, lanes: Sequence[Lane | Line]) -> tuple[int, dict[str, Any]]:
    """The size of statement for these lanes, and its parameters; places left over match nothing."""
    size = next(size for size in LANES_AT_ONCE if size >= len(lanes))
    filled = [*lanes, *[(None,) * len(NAMES[kind])] * (size - len(lanes))]
    return size, dict(zip(_names(kind, size), chain.from_iterable(filled), strict=True))


def _suspects(work: Work, want: Want, outlook: ClaimState, now: int) -> list[Suspect]:
    """Suspects that a want with `alone` would get, best first."""
    if not outlook.suspects:
        return []
    rows = lists_of(work.connection.value(_sql["suspects"], (int(want.limited), now)))
    return [
        Suspect(limits_text or "", Waiting(number, (-priority, rank, id)))
        for number, priority, rank, id, limits_text, *lane in rows
        if Wanted(want, outlook.paused).lane(*lane)
    ]


def _any_suspect(work: Work, wants: Sequence[Want], outlook: ClaimState, now: int) -> bool:
    return any(_suspects(work, want, outlook, now) for want in wants)


# ---- under limits ----------------------------------------------------------------------------------
def _take_limited(
    work: Work, claim: Claim, want: Want, outlook: ClaimState, now: int
) -> tuple[list[Part], SingleOpenGate | None]:
    """What is wanted, and the gate that all of it was taken from, if it was one alone."""
    if want.alone:
        suspects = _suspects(work, want, outlook, now)
        return _take_rows(work, claim, limits.let_suspects_through(work, suspects, want.limit, now), now), None
    wide = limits.wide_gate(work, Wanted(want, outlook.paused), want.limit, now)
    if wide is not None:
        taken = _take_at_gate(work, claim, wide.gate, want.limit, now)
        return taken, wide._replace(room=wide.room - want.limit)
    taken = []
    for numbers in limits.rounds(work, Wanted(want, outlook.paused), want.limit, now):
        taken += _take_rows(work, claim, numbers, now)
    return taken, None


def _take_at_gate(work: Work, claim: Claim, gate: GateRow, limit: int, now: int) -> list[Part]:
    """As many as are wanted of those that wait at a gate which has room for all of them."""

    def best_there(limit: int) -> tuple[str, Taken]:
        place = (gate.limits, gate.queue, gate.task, gate.routing_key)
        usual = _usual(work, claim, place, limit, now)
        return usual or _one_row(work, _sql["best_of_gate"], _held(claim, now) | named(place) | {"limit": limit})

    numbers, taken = _as_many_as_fit(work, best_there, limit)
    if numbers == "[]":
        forget(work, [gate.number])
        return []
    _let_run(work, claim, numbers, taken, now, "take_from_gate")
    return [Part(numbers, taken)]


def _take_rows(work: Work, claim: Claim, numbers: Sequence[int], now: int) -> list[Part]:
    """Let these rows run; all of them, in as many texts as they need."""
    try:
        taken, texts = _by_number(work, claim, numbers, now)
    except work.error as error:
        if work.code(error) != TOOBIG or len(numbers) <= 1:
            raise
        half = len(numbers) // 2
        return [*_take_rows(work, claim, numbers[:half], now), *_take_rows(work, claim, numbers[half:], now)]
    work.connection.change(_sql["take"], (claim.stamp, claim.worker, now, taken))
    return [Part(taken, texts)]


def _opens_at(work: Work, want: Want, outlook: ClaimState, now: int, wide: SingleOpenGate | None) -> int | None:
    """When a limited job could start that this want asks for."""
    if want.alone:
        return limits.suspects_open_at(work, _suspects(work, want, outlook, now), now)
    return limits.opens_at(work, Wanted(want, outlook.paused), now, wide)
