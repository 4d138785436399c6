"""Claiming: the best jobs over all wanted lanes.

A lane is the ready jobs of one queue, task and routing key; the index of places keeps each in claim order. The server lists
the lanes by skipping from one to the next, and merges those that are wanted by their heads, so a claim reads as many jobs as
it takes plus one per lane, whatever waits behind or beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from holdfast.job import ANY, ROW_VERSION, Record, State
from holdfast.storage.contract import Claim, Want
from holdfast.storage.rules import set_state, write_claim

from .documents import DUE, IN_A_LANE, SLIM, WHOLE, Document, Lane, lane_of, records_from, update_of
from .gates import hear
from .knocks import knock
from .limits import Limits
from .rows import takeable, write
from .steps import Steps, aggregate, find, gathered, update

LOOK_AGAIN = 20_000  # microseconds
LANES_AT_ONCE = 150  # beyond 200 the server sorts what it finds instead of merging lanes
IN_ORDER = {"order": 1, "tie": 1, "_id": 1}
Position = tuple[int, int, str]  # order, tie and id of a job in a lane
_POSITION = {"order": 1, "tie": 1}

_FIRST_DUE: list[Document] = [
    {"$match": {"place": DUE}},
    {"$sort": IN_ORDER},
    {"$limit": 1},
    {"$project": {"_id": 0, "run_at": 1}},
]
_LANES: list[Document] = [
    {"$match": {"place": IN_A_LANE}},
    {"$sort": {"place": 1, **IN_ORDER}},
    {"$group": {"_id": "$place"}},
]
_PAUSED: list[Document] = [{"$match": {"paused": True}}, {"$project": {"_id": 1}}]
# one question, whatever there is: it hangs on any job ($unionWith would cost less, but not in a transaction)
_OUTLOOK: list[Document] = [
    {"$limit": 1},
    {"$project": {"_id": 1}},
    {"$lookup": {"from": "holdfast_jobs", "pipeline": _LANES, "as": "lanes"}},
    {"$lookup": {"from": "holdfast_queues", "pipeline": _PAUSED, "as": "paused"}},
    {"$lookup": {"from": "holdfast_jobs", "pipeline": _FIRST_DUE, "as": "due"}},
]


class Outlook(NamedTuple):
    next_due: int | None
    paused: frozenset[str]
    lanes: list[Lane]


class Claimed(NamedTuple):
    records: list[Record]
    next_due: int | None
    suspects: bool
    ready: set[str]  # queues of promoted jobs


class Choice(NamedTuple):
    """What a claim may take: `only` these jobs, if they are named, and none that another claim of this process is `taking`.
    What it takes is added to `mine`, which is one of those sets. `outlook`: what it sees, if it has looked already."""

    only: Sequence[str] | None
    taking: Sequence[set[str]]
    mine: set[str]
    outlook: Outlook | None = None

    def others(self) -> set[str]:
        return {id for each in self.taking if each is not self.mine for id in each}


def claim(claim: Claim, now: int, chunk: int, choice: Choice) -> Steps[Claimed]:
    """Promote what is due, then take what is wanted, want by want. The first want is held to the choice's `only`."""
    outlook = choice.outlook or (yield from look_out())
    ready: set[str] = set()
    if outlook.next_due is not None and outlook.next_due <= now:
        promoted = yield from promote(chunk, now)
        ready = {record.queue for record in promoted}
        outlook = yield from look_out()
    limits = (yield from _limits(outlook, now)) if any(want.limited for want in claim.wants) else None
    taken: list[Record] = []
    for number, want in enumerate(claim.wants):
        if want.limited:
            taken += (yield from limits.take(claim, want)) if limits is not None else []
        else:
            taken += yield from _take(claim, want, outlook, now, choice if number == 0 else choice._replace(only=None))
    due = [] if outlook.next_due is None else [max(0, outlook.next_due - now)]
    if choice.only is not None and len(taken) < claim.wants[0].limit:
        due.append(LOOK_AGAIN)  # others may leave some of what they are about to take
    suspects = yield from _any_suspect(claim.wants, outlook, now)
    if limits is not None:
        limited = [want for want in claim.wants if want.limited]
        due += yield from limits.ended(limited)
        suspects = suspects or (yield from limits.any_suspect(limited))
    return Claimed(taken, min(due, default=None), suspects, ready)


def _limits(outlook: Outlook, now: int) -> Steps[Limits | None]:
    """The limits, after all knocks; None if no job is under any."""
    heard = yield from hear(outlook.paused)
    if heard is None:
        return None
    limits = Limits(heard, now)
    yield from limits.listen()
    return limits


def promote(limit: int, now: int) -> Steps[list[Record]]:
    """Make due jobs ready, the earliest first."""
    due: Document = {"place": DUE, "order": {"$lte": now}}
    promoted = records_from((yield from find("jobs", due, SLIM, sort=IN_ORDER, limit=limit)))
    updates = {}
    for record in promoted:
        before = copy(record)
        set_state(record, State.READY)
        record.version += 1
        updates[record.id] = update_of(before, record)
    yield from update("jobs", gathered(updates))
    yield from knock((None, record) for record in promoted)
    return promoted


def is_vain(claim: Claim, outlook: Outlook, now: int) -> bool:
    """Whether it is plain to see that a claim would find nothing."""
    if any(want.limited for want in claim.wants) or (outlook.next_due is not None and outlook.next_due <= now):
        return False
    return not any(
        _wanted(lane, want, outlook.paused, alone=bool(lane.suspect)) for want in claim.wants for lane in outlook.lanes
    )


def look_out() -> Steps[Outlook]:
    """What waits at all: the lanes, and when the next scheduled job is due."""
    seen = yield from aggregate("jobs", _OUTLOOK)
    if not seen:
        return Outlook(None, frozenset(), [])
    outlook = seen[0]
    return Outlook(
        int(outlook["due"][0]["run_at"]) if outlook["due"] else None,
        frozenset(queue["_id"] for queue in outlook["paused"]),
        [lane_of(place["_id"]) for place in outlook["lanes"]],
    )


def best_positions(want: Want, further: int) -> Steps[list[Position]]:
    """Where the best jobs of a want stand, some times further than it goes. Read from the index alone."""
    outlook = yield from look_out()
    lanes = _lanes(outlook, want)
    seen: list[Position] = []
    for begin in range(0, len(lanes), LANES_AT_ONCE):
        filter: Document = {"place": {"$in": lanes[begin : begin + LANES_AT_ONCE]}}
        found = yield from find("jobs", filter, _POSITION, sort=IN_ORDER, limit=further * want.limit)
        seen += [(int(one["order"]), int(one["tie"]), one["_id"]) for one in found]
    return sorted(seen)[: further * want.limit]


def _lanes(outlook: Outlook, want: Want) -> list[str]:
    return [lane.text() for lane in outlook.lanes if _wanted(lane, want, outlook.paused, alone=want.alone)]


def _take(claim: Claim, want: Want, outlook: Outlook, now: int, choice: Choice) -> Steps[list[Record]]:
    lanes = _lanes(outlook, want)
    if want.limit <= 0 or not lanes:
        return []
    records = yield from _best(lanes, want.limit, now, choice)
    choice.mine.update(record.id for record in records)
    before = {record.id: copy(record) for record in records}
    for record in records:
        write_claim(record, claim, now)
    yield from write(before, records)
    return records


def _best(lanes: Sequence[str], limit: int, now: int, choice: Choice) -> Steps[list[Record]]:
    """The best of some lanes; of very many, group by group."""
    best: list[Record] = []
    for begin in range(0, len(lanes), LANES_AT_ONCE):
        best += yield from _best_of(lanes[begin : begin + LANES_AT_ONCE], limit, now, choice)
        best = sorted(best, key=lambda record: (-record.priority, record.rank, record.id))[:limit]
    return best


def _best_of(lanes: Sequence[str], limit: int, now: int, choice: Choice) -> Steps[list[Record]]:
    """The best that no other claim of this process is taking. Some may have begun while we looked: then look further."""
    filter = {"place": {"$in": list(lanes)}, **takeable(now)}
    if choice.only is not None:
        filter["_id"] = {"$in": list(choice.only)}
    sort = IN_ORDER if choice.only is None else None
    while True:
        enough = limit + len(choice.others())
        found = records_from((yield from find("jobs", filter, WHOLE, sort=sort, limit=enough)))
        others = choice.others()
        best = [record for record in found if record.id not in others]
        if len(best) >= limit or len(found) < enough:
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
    return bool((yield from find("jobs", suspects, {"_id": 1}, limit=1)))


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
