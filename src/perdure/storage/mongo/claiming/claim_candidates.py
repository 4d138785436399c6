"""Reads what a claim could take: lanes, lines, paused queues, the next due time, gates.

With up to `FEW_LANES` lanes a claim merges all lanes. With more it merges lines. A line is the ready jobs of one task and
routing key in all queues, in claim order, so the claim need not read each queue. A claim that names its queues reads only
their lanes.

The server has to read all lanes to find that there are too many. So a store first samples jobs at both ends of the index
(`sample_for_many_lanes`). If there are very many lanes, it uses lines for some time and does not ask for lanes. The result
is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.job import ANY
from perdure.core.record import ROW_VERSION
from perdure.storage.contract import Want

from ..connection.operations import Steps, aggregate, find
from ..limits.limit_gates import AT_ONCE, HEARD, WAKEUPS, LimitDocuments, head_stages, heads_in
from ..reading.document_shapes import LARGEST, is_text, well_formed
from ..reading.records import DUE, IN_A_LANE, Document, Lane, Line, known_lanes, known_lines, lanes_of_queue, queue_of
from .claim_positions import IN_ORDER, not_expired

FEW_LANES = 128  # where there are more, a claim looks along lines
LANES_AT_ONCE = 150  # beyond 200 the server sorts what it finds instead of merging lanes
QUEUES_AT_ONCE = 200  # named queues in one question: a pipeline has at most 1,000 stages
SAMPLE = 1_000  # jobs at each end of the index of places by which a store tells whether there are very many lanes
PAUSED_JOBS = 1_000  # jobs of paused queues that a claim passes by along lines before it looks at every lane
Position = tuple[int, int, str]  # order, tie and id of a job
_POSITION = {"order": 1, "tie": 1}

_FIRST_DUE: list[Document] = [
    {"$match": {"place": DUE, "order": {"$gte": -LARGEST, "$lte": LARGEST}}},
    {"$sort": IN_ORDER},
    {"$limit": 1},
    {"$project": {"_id": 0, "order": 1}},
]
_PAUSED: list[Document] = [{"$match": {"paused": True}}, {"$project": {"_id": 1}}]
_WAKEUPS: list[Document] = [{"$match": {"_id": WAKEUPS}}, {"$sort": {"_id": 1}}, {"$limit": HEARD + 1}]
_FEW: list[Document] = [{"$limit": AT_ONCE + 1}]


def _distinct_stages(field: str, condition: Document) -> list[Document]:
    """List the distinct values of a field. The server skips from one to the next in the index."""
    return [{"$match": {field: condition}}, {"$sort": {field: 1, **IN_ORDER}}, {"$group": {"_id": f"${field}"}}]


# one question, whatever there is: it hangs on any job ($unionWith would cost less, but not in a transaction)
_ANY_JOB: list[Document] = [{"$limit": 1}, {"$project": {"_id": 1}}]
_EVERY_LANE = _distinct_stages("place", IN_A_LANE)
_FIRST_LANES = [*_EVERY_LANE, {"$limit": FEW_LANES + 1}]
_LINES = _distinct_stages("line", IN_A_LANE)
_DUE: list[Document] = [{"$lookup": {"from": "perdure_places", "pipeline": _FIRST_DUE, "as": "due"}}]
_LANES: list[Document] = [{"$lookup": {"from": "perdure_places", "pipeline": _FIRST_LANES, "as": "lanes"}}]
_LIMITS: list[Document] = [
    {"$lookup": {"from": "perdure_notes", "pipeline": _WAKEUPS, "as": "wakeups"}},
    {"$lookup": {"from": "perdure_gates", "pipeline": _FEW, "as": "gates"}},
    {"$lookup": {"from": "perdure_slots", "pipeline": _FEW, "as": "slots"}},
]
_OF_LIMITS = {"wakeups": "notes", "gates": "gates", "slots": "slots"}  # what of the candidates is of which collection


class Spots(NamedTuple):
    """Where wanted jobs are: in some lanes (`field` is place) or lines (`field` is line). Lines contain jobs of paused
    queues too."""

    field: str
    names: list[str]

    def groups(self) -> list[Spots]:
        """The same in groups that the server can merge."""
        return [
            Spots(self.field, self.names[begin : begin + LANES_AT_ONCE])
            for begin in range(0, len(self.names), LANES_AT_ONCE)
        ]

    def allowed(self, places: Sequence[Document], paused: frozenset[str]) -> list[Document]:
        """Those of these places that are in no paused queue."""
        if self.field == "place" or not paused:
            return list(places)
        return [place for place in places if queue_of(place["place"]) not in paused]


NOWHERE = Spots("place", [])


class Best(NamedTuple):
    """The best jobs of some spots, and whether these are all."""

    spots: Spots
    ids: list[str]
    all: bool

    def leaves_nothing(self, spots: Spots, taken: frozenset[str]) -> bool:
        """Whether only claimed jobs wait at these spots."""
        known = self.spots.field == spots.field and set(self.spots.names).issuperset(spots.names)
        return self.all and known and taken.issuperset(self.ids)


class Candidates(NamedTuple):
    """What could be claimed. `lines` are known where there are very many lanes; then `lanes` has only those of the named
    queues. Limit documents are read if the claim asks for limited jobs, the best jobs if the guess named spots."""

    next_due: int | None
    paused: frozenset[str]
    lanes: list[Lane]
    lines: list[Line] | None = None
    limits: LimitDocuments | None = None
    best: Best | None = None

    def spots(self, want: Want, *, alone: bool) -> Spots:
        """Where the jobs of a want are; `alone`: suspects."""
        if self.lines is not None and want.queues is None:
            return Spots("line", [line.text() for line in self.lines if _fits(line, want, alone=alone)])
        lanes = [
            lane.text()
            for lane in self.lanes
            if _fits(lane, want, alone=alone)
            and lane.queue not in self.paused
            and (want.queues is None or lane.queue in want.queues)
        ]
        return Spots("place", lanes)


def _fits(jobs: Lane | Line, want: Want, *, alone: bool) -> bool:
    return (
        not want.limited
        and bool(jobs.suspect) is alone
        and jobs.min_version <= ROW_VERSION
        and (want.tasks is None or jobs.task in want.tasks)
        and (want.routing is ANY or jobs.routing_key == want.routing)
    )


class Guess(NamedTuple):
    """What a claim will probably ask for. If the guess is right, the candidates contain the best jobs too, which saves a
    round trip. `many`: there are probably very many lanes."""

    now: int
    spots: Spots
    limit: int  # of their best jobs
    gates: dict[str, int]  # how many of the jobs at each
    many: bool = False

    def stages(self) -> list[Document]:
        stages = head_stages(self.gates, not_expired(self.now))
        if not self.spots.names:
            return stages
        best: list[Document] = [
            {"$match": {self.spots.field: {"$in": self.spots.names}, **not_expired(self.now)}},
            {"$sort": IN_ORDER},
            {"$limit": self.limit},
            {"$project": {"_id": 1} if self.spots.field == "place" else {"_id": 1, "place": 1}},
        ]
        return [*stages, {"$lookup": {"from": "perdure_places", "pipeline": best, "as": "best"}}]

    def best(self, found: Document, paused: frozenset[str]) -> Best | None:
        if not self.spots.names:
            return None
        places = [place for place in found["best"] if is_text(place["_id"])]
        ids = [place["_id"] for place in self.spots.allowed(places, paused)]
        return Best(self.spots, ids, len(found["best"]) < self.limit)


NO_GUESS = Guess(0, NOWHERE, 0, {})


def read_candidates(wants: Sequence[Want], guess: Guess = NO_GUESS, *, limited: bool = False) -> Steps[Candidates]:
    """Read the lanes and when the next scheduled job is due. `limited`: also what a claim under limits needs."""
    named = sorted({queue for want in wants for queue in want.queues or ()})
    at_once = guess.many and len(named) <= QUEUES_AT_ONCE
    lanes_of = _many_stages(named) if at_once else [] if guess.many else _LANES
    asked = [*_paused_stages(wants, named), *_DUE, *lanes_of, *(_LIMITS if limited else ()), *guess.stages()]
    seen = yield from aggregate("jobs", [*_ANY_JOB, *asked])
    if not seen:  # there is no job at all
        return Candidates(None, frozenset(), [], None, LimitDocuments([], [], []) if limited else None)
    (candidates,) = seen
    limits = None
    if limited:
        checked = {name: well_formed(of, candidates[name]) for name, of in _OF_LIMITS.items()}
        limits = LimitDocuments(
            checked["wakeups"], checked["gates"], checked["slots"], heads_in(candidates, guess.gates)
        )
    lines = None
    if at_once:
        lanes, lines = _many_in(candidates, named)
    elif guess.many or len(candidates["lanes"]) > FEW_LANES:
        lanes, lines = yield from _many(named)
    else:
        lanes = known_lanes(place["_id"] for place in candidates["lanes"])
    paused = frozenset(queue["_id"] for queue in candidates["paused"] if is_text(queue["_id"]))
    return Candidates(
        int(candidates["due"][0]["order"]) if candidates["due"] else None,
        paused,
        lanes,
        lines,
        limits,
        guess.best(candidates, paused),
    )


def _paused_stages(wants: Sequence[Want], named: Sequence[str]) -> list[Document]:
    """Read the paused queues; if every want names its queues, only those among them."""
    paused = _PAUSED
    if all(want.queues is not None for want in wants):
        paused = [{"$match": {"_id": {"$in": list(named)}}}, *_PAUSED]
    return [{"$lookup": {"from": "perdure_queues", "pipeline": paused, "as": "paused"}}]


# ---- where there are very many lanes ---------------------------------------------------------------
def sample_for_many_lanes() -> Steps[bool]:
    """Whether there are very many lanes among the first or the last ready jobs by lane. Reads a fixed number of keys. False
    proves nothing."""
    ends = {"first": 1, "last": -1}
    sampled = {
        name: [
            {"$match": {"place": IN_A_LANE}},
            {"$sort": {"place": way, **{field: way * order for field, order in IN_ORDER.items()}}},
            {"$limit": SAMPLE},
            {"$group": {"_id": "$place"}},
            {"$limit": FEW_LANES + 1},
        ]
        for name, way in ends.items()
    }
    lookups = [{"$lookup": {"from": "perdure_places", "pipeline": of, "as": name}} for name, of in sampled.items()]
    seen = yield from aggregate("jobs", [*_ANY_JOB, *lookups])
    return any(len(found[name]) > FEW_LANES for found in seen for name in ends)


def _many(named: Sequence[str]) -> Steps[tuple[list[Lane], list[Line]]]:
    """The lanes of the named queues, and the lines."""
    lanes: list[Lane] = []
    lines: list[Line] = []
    for begin in range(0, max(1, len(named)), QUEUES_AT_ONCE):
        ours = named[begin : begin + QUEUES_AT_ONCE]
        for found in (yield from aggregate("jobs", [*_ANY_JOB, *_many_stages(ours)])):
            more, lines = _many_in(found, ours)
            lanes += more
    return lanes, lines


def _many_stages(named: Sequence[str]) -> list[Document]:
    """Read the lines, and the lanes of the named queues."""
    listed = {"lines": _LINES}
    for number, queue in enumerate(named):
        listed[f"queue{number}"] = _distinct_stages("place", lanes_of_queue(queue))
    return [{"$lookup": {"from": "perdure_places", "pipeline": of, "as": name}} for name, of in listed.items()]


def _many_in(found: Document, named: Sequence[str]) -> tuple[list[Lane], list[Line]]:
    """The result of these stages."""
    lanes = [place["_id"] for number in range(len(named)) for place in found[f"queue{number}"]]
    return known_lanes(lanes), known_lines(line["_id"] for line in found["lines"])


# ---- the first places ------------------------------------------------------------------------------
def first_ids(
    spots: Spots, paused: frozenset[str], condition: Document, most: int, *, in_order: bool = True
) -> Steps[tuple[list[str], bool]]:
    """The first jobs at some spots that fit a condition, and whether these are all."""
    groups = spots.groups()
    if len(groups) > 1:
        positions, all = yield from first_positions(spots, paused, condition, most)
        return [id for _, _, id in positions], all
    found: list[Document] | None = []
    for group in groups:
        found = yield from _first_of(group, paused, condition, most, {"_id": 1}, in_order=in_order)
    if found is None:
        lanes = yield from _allowed_lanes(spots, paused)
        return (yield from first_ids(lanes, paused, condition, most, in_order=in_order))
    return [place["_id"] for place in found], len(found) < most


def first_positions(
    spots: Spots, paused: frozenset[str], condition: Document, most: int
) -> Steps[tuple[list[Position], bool]]:
    """The same with positions. Very many spots are read group by group."""
    positions: list[Position] = []
    all = True
    for group in spots.groups():
        found = yield from _first_of(group, paused, condition, most, _POSITION)
        if found is None:
            lanes = yield from _allowed_lanes(spots, paused)
            return (yield from first_positions(lanes, paused, condition, most))
        positions += [(int(one["order"]), int(one.get("tie", 0)), one["_id"]) for one in found]
        all = all and len(found) < most
    return sorted(positions)[:most], all and len(positions) <= most


def _first_of(
    spots: Spots,
    paused: frozenset[str],
    condition: Document,
    most: int,
    projection: Document,
    *,
    in_order: bool = True,
) -> Steps[list[Document] | None]:
    """The first places of one group. None: too many jobs of paused queues come first."""
    filter: Document = {spots.field: {"$in": spots.names}, **condition}
    if spots.field == "line" and paused:
        projection = projection | {"place": 1}
    for more in (0, PAUSED_JOBS):
        limit = most + more
        found = yield from find("places", filter, projection, sort=IN_ORDER if in_order else None, limit=limit)
        allowed = spots.allowed(found, paused)
        if len(allowed) >= most or len(found) < limit:
            return allowed[:most]
    return None


def _allowed_lanes(lines: Spots, paused: frozenset[str]) -> Steps[Spots]:
    """The lanes of some lines, without those of paused queues."""
    found = known_lanes(place["_id"] for place in (yield from aggregate("places", _EVERY_LANE)))
    names = set(lines.names)
    lanes = [lane.text() for lane in found if lane.queue not in paused and lane.line().text() in names]
    return Spots("place", lanes)
