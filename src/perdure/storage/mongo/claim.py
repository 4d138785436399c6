"""Claiming: the best jobs over all wanted lanes.

A lane is the ready jobs of one queue, task and routing key; the index of places keeps each in claim order. The server lists
the lanes by skipping from one to the next, and merges those that are wanted by their heads, so a claim reads as many jobs as
it takes plus one per lane, whatever waits behind or beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from perdure.job import ANY, ROW_VERSION, Record, State
from perdure.storage.contract import Claim, Want
from perdure.storage.rules import set_state, write_claim

from . import slots
from .documents import DUE, IN_A_LANE, SLIM, WHOLE, Document, Lane, known_lanes
from .gates import AT_ONCE, HEARD, KNOCKS, Asked, head_stages, heads_in, hear, is_quiet
from .knocks import knock
from .limits import Limits
from .places import IN_ORDER, forget, takeable
from .rows import write
from .shapes import LARGEST, is_text, well_formed
from .steps import Steps, aggregate, find, insert
from .turns import Turn
from .unreadable import readable

LANES_AT_ONCE = 150  # beyond 200 the server sorts what it finds instead of merging lanes
Position = tuple[int, int, str]  # order, tie and id of a job in a lane
_POSITION = {"order": 1, "tie": 1}

_FIRST_DUE: list[Document] = [
    {"$match": {"place": DUE, "order": {"$gte": -LARGEST, "$lte": LARGEST}}},
    {"$sort": IN_ORDER},
    {"$limit": 1},
    {"$project": {"_id": 0, "order": 1}},
]
_LANES: list[Document] = [
    {"$match": {"place": IN_A_LANE}},
    {"$sort": {"place": 1, **IN_ORDER}},
    {"$group": {"_id": "$place"}},
]
_PAUSED: list[Document] = [{"$match": {"paused": True}}, {"$project": {"_id": 1}}]
_KNOCKS: list[Document] = [{"$match": {"_id": KNOCKS}}, {"$sort": {"_id": 1}}, {"$limit": HEARD + 1}]
_FEW: list[Document] = [{"$limit": AT_ONCE + 1}]
# one question, whatever there is: it hangs on any job ($unionWith would cost less, but not in a transaction)
_OUTLOOK: list[Document] = [
    {"$limit": 1},
    {"$project": {"_id": 1}},
    {"$lookup": {"from": "perdure_places", "pipeline": _LANES, "as": "lanes"}},
    {"$lookup": {"from": "perdure_queues", "pipeline": _PAUSED, "as": "paused"}},
    {"$lookup": {"from": "perdure_places", "pipeline": _FIRST_DUE, "as": "due"}},
]
_LIMITS: list[Document] = [
    {"$lookup": {"from": "perdure_notes", "pipeline": _KNOCKS, "as": "knocks"}},
    {"$lookup": {"from": "perdure_gates", "pipeline": _FEW, "as": "gates"}},
    {"$lookup": {"from": "perdure_slots", "pipeline": _FEW, "as": "slots"}},
]


_OF_LIMITS = {"knocks": "notes", "gates": "gates", "slots": "slots"}  # what of the outlook is of which collection


class Best(NamedTuple):
    """The best jobs of some lanes, and whether that is everything that waits there."""

    lanes: list[str]
    ids: list[str]
    all: bool

    def leaves_nothing(self, lanes: Sequence[str], taken: frozenset[str]) -> bool:
        """Whether nobody else waits in some lanes than those that are taken."""
        return self.all and taken.issuperset(self.ids) and set(self.lanes).issuperset(lanes)


class Outlook(NamedTuple):
    """What waits. Gates and knocks are known if limits were asked for, the best jobs if lanes were."""

    next_due: int | None
    paused: frozenset[str]
    lanes: list[Lane]
    limits: Asked | None = None
    best: Best | None = None


class Claimed(NamedTuple):
    records: list[Record]
    next_due: int | None
    suspects: bool
    ready: set[str]  # queues of promoted jobs


class Choice(NamedTuple):
    """What a claim may take: `only` these jobs, if they are named, and none that other claims of this process are `taking`
    beside it. What it takes is added to `mine`. `lanes`: those that the last claim here wanted, and this one probably wants
    too. `look_again`: microseconds after which it may find more. `outlook`: what it sees, if it has looked already. `turn`:
    its turn among those that claim under limits, if it does. `earlier`: what it has taken already, for other wants."""

    only: Sequence[str] | None
    taking: list[set[str]]
    mine: set[str]
    lanes: list[str]
    look_again: int = 0
    turn: Turn | None = None
    outlook: Outlook | None = None
    earlier: frozenset[str] = frozenset()

    def others(self) -> set[str]:
        return {id for each in (*self.taking, self.earlier) for id in each}

    def after(self, earlier: frozenset[str]) -> Choice:
        """The same for another want of the claim, which has taken some jobs already."""
        return self._replace(only=None, earlier=earlier)


def claim(
    claim: Claim, now: int, chunk: int, choice: Choice, knocks: list[Document], running: slots.Change
) -> Steps[Claimed]:
    """Promote what is due, then take what is wanted, want by want. The first want is held to the choice's `only`. `knocks`
    and `running`: those of the same exchange, which are not on record yet; nobody has to put knocks there unless they cannot
    be heard now."""
    outlook = choice.outlook or (yield from look_out(guess_of(claim, now, choice), choice.turn is not None))
    ready: set[str] = set()
    if outlook.next_due is not None and outlook.next_due <= now:
        promoted = yield from promote(chunk, now)
        ready = {record.queue for record in promoted}
        outlook = yield from look_out(limited=choice.turn is not None)
    limits = None
    if choice.turn is None:
        yield from insert("notes", knocks)
    else:
        limits = yield from _limits(outlook, now, knocks, running, choice.turn)
    taken: list[Record] = []
    for number, want in enumerate(claim.wants):
        if want.limited:
            taken += (yield from limits.take(want)) if limits is not None else []
        else:
            earlier = frozenset(record.id for record in taken)
            taken += yield from _best(claim, want, outlook, now, choice if number == 0 else choice.after(earlier))
    yield from _write(taken, claim, now)
    due = [] if outlook.next_due is None else [max(0, outlook.next_due - now)]
    if choice.only is not None and len(taken) < claim.wants[0].limit:
        due.append(choice.look_again)  # others may leave some of what they are about to take
    suspects = yield from _any_suspect(claim.wants, outlook, now)
    if limits is not None:
        under_limits = [want for want in claim.wants if want.limited]
        due += yield from limits.ended(under_limits)
        suspects = suspects or (yield from limits.any_suspect(under_limits))
    return Claimed(taken, min(due, default=None), suspects, ready)


def _limits(
    outlook: Outlook, now: int, knocks: list[Document], running: slots.Change, turn: Turn
) -> Steps[Limits | None]:
    """The limits, after all knocks; None if no job is under any."""
    heard = yield from hear(outlook.paused, outlook.limits, knocks)
    if heard is None:
        return None
    limits = Limits(heard, now, running, turn)
    yield from limits.listen()
    return limits


def promote(limit: int, now: int) -> Steps[list[Record]]:
    """Make due jobs ready, the earliest first."""
    due: Document = {"place": DUE, "order": {"$lte": now}}
    ids = [place["_id"] for place in (yield from find("places", due, {"_id": 1}, sort=IN_ORDER, limit=limit))]
    promoted, _ = yield from standing(ids, State.SCHEDULED, now, SLIM)
    before = {record.id: copy(record) for record in promoted}
    for record in promoted:
        set_state(record, State.READY)
        record.version += 1
    yield from write(before, promoted)
    yield from knock((None, record) for record in promoted)
    return promoted


def is_vain(claim: Claim, outlook: Outlook, now: int) -> bool:
    """Whether it is plain to see that a claim would find nothing."""
    if outlook.next_due is not None and outlook.next_due <= now:
        return False
    if any(want.limited for want in claim.wants) and not is_quiet(outlook.limits):
        return False
    return not any(
        _wanted(lane, want, outlook.paused, alone=bool(lane.suspect)) for want in claim.wants for lane in outlook.lanes
    )


class Guess(NamedTuple):
    """What a claim probably means: if it does, the outlook tells it the best jobs too, and saves a question."""

    now: int
    lanes: list[str]
    limit: int  # of their best jobs
    gates: dict[str, int]  # how many of the jobs at each

    def stages(self) -> list[Document]:
        stages = head_stages(self.gates, takeable(self.now))
        if not self.lanes:
            return stages
        best: list[Document] = [
            {"$match": {"place": {"$in": self.lanes}, **takeable(self.now)}},
            {"$sort": IN_ORDER},
            {"$limit": self.limit},
            {"$project": {"_id": 1}},
        ]
        return [*stages, {"$lookup": {"from": "perdure_places", "pipeline": best, "as": "best"}}]

    def best(self, found: Document) -> Best | None:
        if not self.lanes:
            return None
        ids = [place["_id"] for place in found["best"] if is_text(place["_id"])]
        return Best(self.lanes, ids, len(found["best"]) < self.limit)


NO_GUESS = Guess(0, [], 0, {})


def look_out(guess: Guess = NO_GUESS, limited: bool = False) -> Steps[Outlook]:
    """What waits at all: the lanes, and when the next scheduled job is due. `limited`: also what a claim under limits has to
    hear of."""
    seen = yield from aggregate("jobs", [*_OUTLOOK, *(_LIMITS if limited else ()), *guess.stages()])
    if not seen:  # there is no job at all
        return Outlook(None, frozenset(), [], Asked([], [], []) if limited else None)
    (outlook,) = seen
    limits = None
    if limited:
        told = {name: well_formed(of, outlook[name]) for name, of in _OF_LIMITS.items()}
        limits = Asked(told["knocks"], told["gates"], told["slots"], heads_in(outlook, guess.gates))
    return Outlook(
        int(outlook["due"][0]["order"]) if outlook["due"] else None,
        frozenset(queue["_id"] for queue in outlook["paused"] if is_text(queue["_id"])),
        known_lanes(place["_id"] for place in outlook["lanes"]),
        limits,
        guess.best(outlook),
    )


def guess_of(claim: Claim, now: int, choice: Choice) -> Guess:
    want = claim.wants[0] if claim.wants else None
    limited = sum(want.limit for want in claim.wants if want.limited)
    gates = {} if choice.turn is None else choice.turn.guess(limited)
    if want is None or want.limited or want.limit <= 0 or choice.only is not None:
        return Guess(now, [], 0, gates)
    lanes = list(choice.lanes) if len(choice.lanes) <= LANES_AT_ONCE else []
    return Guess(now, lanes, want.limit + len(choice.others()), gates)


def best_positions(want: Want, most: int) -> Steps[list[Position]]:
    """Where the best jobs of a want stand, and what comes after them. Read from the index alone."""
    outlook = yield from look_out()
    lanes = _lanes(outlook, want)
    seen: list[Position] = []
    for begin in range(0, len(lanes), LANES_AT_ONCE):
        filter: Document = {"place": {"$in": lanes[begin : begin + LANES_AT_ONCE]}}
        found = yield from find("places", filter, _POSITION, sort=IN_ORDER, limit=most)
        seen += [(int(one["order"]), int(one.get("tie", 0)), one["_id"]) for one in found]
    return sorted(seen)[:most]


def _lanes(outlook: Outlook, want: Want) -> list[str]:
    return [lane.text() for lane in outlook.lanes if _wanted(lane, want, outlook.paused, alone=want.alone)]


def _best(claim: Claim, want: Want, outlook: Outlook, now: int, choice: Choice) -> Steps[list[Record]]:
    """The best of the wanted lanes; of very many, group by group."""
    lanes = _lanes(outlook, want)
    if want.limit <= 0 or not lanes:
        return []
    seen = None
    if want is claim.wants[0]:
        choice.lanes[:] = lanes
        seen = outlook.best if outlook.best is not None and outlook.best.lanes == lanes else None
    elif outlook.best is not None and outlook.best.leaves_nothing(lanes, choice.earlier):
        return []
    best: list[Record] = []
    for begin in range(0, len(lanes), LANES_AT_ONCE):
        best += yield from _best_of(lanes[begin : begin + LANES_AT_ONCE], want.limit, now, choice, seen)
        best = sorted(best, key=lambda record: (-record.priority, record.rank, record.id))[: want.limit]
    return best


def _write(records: Sequence[Record], claim: Claim, now: int) -> Steps[None]:
    """Put on record who has taken them: at once for all wants of a claim."""
    before = {record.id: copy(record) for record in records}
    for record in records:
        write_claim(record, claim, now)
    yield from write(before, records)


def _best_of(lanes: Sequence[str], limit: int, now: int, choice: Choice, seen: Best | None) -> Steps[list[Record]]:
    """The best that no other claim of this process is taking. Some may have begun while we looked: then look further."""
    if seen is not None and (ids := _free(seen.ids, limit, choice, all=seen.all)) is not None:
        records, gone = yield from standing(ids, State.READY, now, told_before=choice.outlook is not None)
        if not gone:
            return records
    while True:
        ids = yield from _best_places(lanes, limit, now, choice)
        records, strays = yield from standing(ids, State.READY, now)
        if not strays:
            return records


def standing(
    ids: Sequence[str], state: State, now: int, projection: Document = WHOLE, *, told_before: bool = False
) -> Steps[tuple[list[Record], list[str]]]:
    """The jobs that stand at some places, and those that do not. Places are given up whose job somebody has removed or
    changed by hand; but jobs of which we were `told_before` this transaction may have moved since. A job that cannot be read
    is set aside."""
    if not ids:
        return [], []
    found = yield from find("jobs", {"_id": {"$in": list(ids)}}, projection)
    there = [document for document in found if document.get("state") == state.value]
    by_id = {record.id: record for record in (yield from readable(there, now, whole=projection is WHOLE))}
    strays = [id for id in ids if id not in by_id]
    if not told_before:
        yield from forget(strays)
    return [by_id[id] for id in ids if id in by_id], strays


def _best_places(lanes: Sequence[str], limit: int, now: int, choice: Choice) -> Steps[list[str]]:
    filter = {"place": {"$in": list(lanes)}, **takeable(now)}
    if choice.only is not None:
        filter["_id"] = {"$in": list(choice.only)}
    sort = IN_ORDER if choice.only is None else None
    while True:
        enough = limit + len(choice.others())
        found = [place["_id"] for place in (yield from find("places", filter, {"_id": 1}, sort=sort, limit=enough))]
        best = _free(found, limit, choice, all=len(found) < enough)
        if best is not None:
            return best


def _free(found: Sequence[str], limit: int, choice: Choice, *, all: bool) -> list[str] | None:
    """Those of some jobs that no other claim of this process is taking; None, if they are too few and not `all` there are.
    They are ours at once: another claim may look while we read them."""
    others = choice.others()
    best = [id for id in found if id not in others][:limit]
    if len(best) < limit and not all:
        return None
    choice.mine.update(best)
    return best


def _any_suspect(wants: Sequence[Want], outlook: Outlook, now: int) -> Steps[bool]:
    lanes = {
        lane.text()
        for lane in outlook.lanes
        for want in wants
        if lane.suspect and _wanted(lane, want, outlook.paused, alone=True)
    }
    if not lanes:
        return False
    suspects: Document = {"place": {"$in": sorted(lanes)}, **takeable(now)}
    return bool((yield from find("places", suspects, {"_id": 1}, limit=1)))


def _wanted(lane: Lane, want: Want, paused: frozenset[str], *, alone: bool) -> bool:
    return (
        not want.limited
        and bool(lane.suspect) is alone
        and lane.min_version <= ROW_VERSION
        and lane.queue not in paused
        and (want.queues is None or lane.queue in want.queues)
        and (want.tasks is None or lane.task in want.tasks)
        and (want.routing is ANY or lane.routing_key == want.routing)
    )
