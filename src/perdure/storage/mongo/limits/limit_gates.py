"""Gates: parked jobs under the same limits, and whether one of them may start.

A gate is open, shut by a rate until an instant (`at`), or shut by a key that is used up (`shut_by`). Only claims under
limits write gates, one at a time (see `limit_turns`). A claim reads open gates only, however many jobs wait at the others.
A gate without jobs is removed. A gate that a claim opens and shuts again is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.core.clock import SECOND
from perdure.core.job import ANY
from perdure.core.record import ROW_VERSION
from perdure.storage.contract import Want
from perdure.storage.rules.limits import ClaimOrder, Closed

from ..connection.operations import PREFIX, Steps, aggregate, delete, find, insert, update
from ..reading.document_shapes import well_formed
from ..reading.records import Document, gate_of, gates_of_queue, is_gate
from ..writing.small_documents import MET, TURNS, WAKEUP, add, remove_notes

AT_ONCE = 64  # gates that are looked at together
FEWEST = 8  # the same, where a claim asks for few jobs and there are very many gates
QUEUES_BY_ID = 200  # named queues whose gates are found by the beginnings of their ids
HEARD = 1_000  # wakeups that one claim hears
LONG = 600 * SECOND
WAKEUPS: Document = {"$gte": WAKEUP, "$lt": f"{WAKEUP}0"}  # ids of wakeups, and of the notes that claims write
OF_TURNS = (*TURNS, MET)


class LimitNews(NamedTuple):
    """What a claim under limits reads when it begins."""

    wakeups: list[Document]  # on record
    fresh: list[Document]  # of this very exchange, not on record yet
    turns: list[Document]  # the notes of turns
    last: int  # when the last claim looked
    paused: frozenset[str]
    gates: list[Document] | None  # all of them, if they are few
    slots: list[Document] | None  # the same
    heads: Mapping[str, Heads]  # of some gates

    @property
    def places(self) -> dict[str, None]:
        return dict.fromkeys(wakeup["gate"] for wakeup in [*self.wakeups, *self.fresh] if "gate" in wakeup)

    @property
    def keys(self) -> dict[str, None]:
        return dict.fromkeys(wakeup["key"] for wakeup in [*self.wakeups, *self.fresh] if "key" in wakeup)


class LimitDocuments(NamedTuple):
    """Wake-ups, gates and slots that are known before a claim under limits begins: all of them, or the first so many."""

    notes: list[Document]
    gates: list[Document]
    slots: list[Document]
    heads: Mapping[str, Heads] = {}  # of gates at which it probably looks


class Heads(NamedTuple):
    """The best jobs at a gate, and whether these are all."""

    jobs: list[ClaimOrder]
    all: bool


# ---- hearing ---------------------------------------------------------------------------------------
def read_limit_news(
    paused: frozenset[str], asked: LimitDocuments | None, fresh: list[Document]
) -> Steps[LimitNews | None]:
    """Read limit wake-ups, the earliest first; None: there is none, and no gate. `paused`: queues. `asked`: what was read
    with the candidates. `fresh`: wake-ups of this very exchange."""
    if asked is None:
        notes = yield from find("notes", {"_id": WAKEUPS}, sort={"_id": 1}, limit=HEARD + 1)
        known = yield from find("gates", {}, limit=AT_ONCE + 1)
        asked = LimitDocuments(notes, known, (yield from find("slots", {}, limit=AT_ONCE + 1)))
    if is_quiet(asked) and not fresh:
        return None
    turns = [note for note in asked.notes if note["_id"] in OF_TURNS]
    news = LimitNews(
        [note for note in asked.notes if note["_id"] not in OF_TURNS],
        fresh,
        turns,
        max((int(note["at"]) for note in turns if note["_id"] in TURNS), default=0),
        paused,
        asked.gates,
        asked.slots if len(asked.slots) <= AT_ONCE else None,
        asked.heads,
    )
    few = len({gate["_id"] for gate in asked.gates} | news.places.keys()) <= AT_ONCE
    return news if few else news._replace(gates=None)


def is_quiet(asked: LimitDocuments | None) -> bool:
    """Whether it is known that there is no wake-up and no gate."""
    return asked is not None and not asked.gates and all(note["_id"] in OF_TURNS for note in asked.notes)


def remove_wakeups(news: LimitNews, kept: Collection[str]) -> Steps[None]:
    """Remove the wake-ups, except those of `kept` keys; new ones of these keys are stored."""
    yield from remove_notes(wakeup["_id"] for wakeup in news.wakeups if wakeup.get("key") not in kept)
    yield from insert("notes", [wakeup for wakeup in news.fresh if wakeup.get("key") in kept])


def repair(now: int) -> Steps[None]:
    """Send wake-ups for gates that a key has shut for long. No case is known that needs this."""
    shut: Document = {"shut_by": {"$gt": ""}, "at": {"$lt": now - LONG}}
    found = yield from find("gates", shut, {"shut_by": 1}, limit=AT_ONCE)
    yield from add(WAKEUP, [{"key": key} for key in {gate["shut_by"][1:] for gate in found}])


# ---- looking ---------------------------------------------------------------------------------------
def condition_of(want: Want, paused: frozenset[str], *, alone: bool) -> Document:
    """The condition for the gates that a want asks for."""
    condition: Document = {"suspect": int(alone), "min_version": {"$lte": ROW_VERSION}}
    if want.queues is not None:
        condition["queue"] = {"$in": [queue for queue in want.queues if queue not in paused]}
    elif paused:
        condition["queue"] = {"$nin": sorted(paused)}
    if want.tasks is not None:
        condition["task"] = {"$in": list(want.tasks)}
    if want.routing is not ANY:
        condition["routing_key"] = want.routing
    return condition


def heads(most: Mapping[str, int], not_expired: Document) -> Steps[dict[str, Heads]]:
    """The best jobs at some gates, at most so many of each, in one question."""
    if not most:
        return {}
    stages: list[Document] = [{"$limit": 1}, {"$project": {"_id": 0, "shut_by": 1}}, *head_stages(most, not_expired)]
    found = yield from aggregate("gates", stages)
    return heads_in(found[0], most) if found else {place: Heads([], True) for place in most}


def head_stages(most: Mapping[str, int], not_expired: Document) -> list[Document]:
    """Read the best jobs at some gates."""
    stages: list[Document] = []
    for number, (place, jobs) in enumerate(most.items()):
        best: list[Document] = [
            {"$match": {"place": place, **not_expired}},
            {"$sort": {"order": 1, "tie": 1, "_id": 1}},
            {"$limit": jobs},
            {"$project": {"order": 1, "tie": 1}},
        ]
        stages.append({"$lookup": {"from": f"{PREFIX}places", "pipeline": best, "as": f"gate{number}"}})
    return stages


def heads_in(found: Document, most: Mapping[str, int]) -> dict[str, Heads]:
    """The result of these stages."""
    found_heads: dict[str, Heads] = {}
    for number, (place, asked) in enumerate(most.items()):
        ours = well_formed("places", found[f"gate{number}"], {"order": 1, "tie": 1})
        jobs = [(int(job["order"]), int(job.get("tie", 0)), job["_id"]) for job in ours]
        found_heads[place] = Heads(jobs, len(found[f"gate{number}"]) < asked)
    return found_heads


class Gates:
    """The gates as one claim reads and writes them: all in memory if they are few, else read when needed. Changes of gates
    in memory are written in the end."""

    def __init__(self, known: Iterable[Document] | None) -> None:
        self._known = None if known is None else {gate["_id"]: gate for gate in known}
        self._stored = dict(self._known or {})

    @property
    def at_hand(self) -> bool:
        return self._known is not None

    def to_look_at(self, jobs: int) -> int:
        """How many gates a claim for so many jobs reads at once."""
        return AT_ONCE if self.at_hand else min(AT_ONCE, max(FEWEST, 2 * jobs))

    # -- looking -------------------------------------------------------------------------------------
    def find_open(self, condition: Document, now: int, seen: Collection[str], most: int) -> Steps[list[Document]]:
        """Open gates, those first that were not read for the longest time. At most so many, unless all are in memory."""
        if self._known is not None:
            return [gate for gate in self._unshut(condition) if gate["at"] <= now and gate["_id"] not in seen]
        unseen: Document = {"_id": {"$nin": sorted(seen)}} if seen else {}
        opened: Document = {"shut_by": None, "at": {"$lte": now}}
        return (yield from _find_wanted(opened | condition | unseen, most, sort={"at": 1}))

    def find_opening(self, condition: Document) -> Steps[list[Document]]:
        """Gates that are open, or that a rate opens, the earliest first."""
        if self._known is not None:
            return self._unshut(condition)
        return (yield from _find_wanted({"shut_by": None} | condition, AT_ONCE, sort={"at": 1}))

    def all_open(self, condition: Document, now: int) -> bool:
        """Whether it is known that all gates that fit are open."""
        fitting = [gate for gate in (self._known or {}).values() if _fits(gate, condition)]
        return self._known is not None and all(gate["shut_by"] is None and gate["at"] <= now for gate in fitting)

    def find_any(self, condition: Document) -> Steps[list[str]]:
        """Some gates that fit, open or shut."""
        if self._known is not None:
            return [id for id, gate in self._known.items() if _fits(gate, condition)]
        return [gate["_id"] for gate in (yield from _find_wanted(condition, AT_ONCE))]

    def shut_by(self, keys: Iterable[str]) -> Steps[set[str]]:
        """Those of these keys that have shut gates."""
        if self._known is not None:
            shut = {gate["shut_by"] for gate in self._known.values()}
            return {key for key in keys if f"k{key}" in shut}
        stages: list[Document] = [
            {"$match": _shut_by(keys)},
            {"$sort": {"shut_by": 1, "at": 1}},
            {"$group": {"_id": "$shut_by"}},
        ]
        return {group["_id"][1:] for group in (yield from aggregate("gates", stages))}

    def _unshut(self, condition: Document) -> list[Document]:
        known = self._known or {}
        fitting = [gate for gate in known.values() if gate["shut_by"] is None and _fits(gate, condition)]
        return sorted(fitting, key=lambda gate: int(gate["at"]))

    # -- writing -------------------------------------------------------------------------------------
    def add_gates(self, places: Iterable[str]) -> Steps[None]:
        """Add gates that have jobs now; an existing gate stays as it is."""
        new = {place: gate_of(place)._asdict() | {"shut_by": None, "at": 0} for place in places if is_gate(place)}
        if self._known is not None:
            new = {place: gate for place, gate in new.items() if place not in self._known}
            made_known: dict[str, Document] = {place: {"_id": place, **gate} for place, gate in new.items()}
            self._known |= made_known
            self._stored |= made_known
        made = [{"q": {"_id": place}, "u": {"$setOnInsert": gate}, "upsert": True} for place, gate in new.items()]
        yield from update("gates", made)

    def reopen(self, keys: Iterable[str], most: int) -> Steps[int]:
        """Open gates that these keys have shut, the longest shut first; returns how many."""
        if self._known is not None:
            wanted = {f"k{key}" for key in keys}
            shut = [gate for gate in self._known.values() if gate["shut_by"] in wanted]
            found = sorted(shut, key=lambda gate: int(gate["at"]))[:most]
        else:
            found = yield from find("gates", _shut_by(keys), {"_id": 1}, sort={"at": 1}, limit=most)
        yield from self._set([gate["_id"] for gate in found], None, 0)
        return len(found)

    def reopen_all_under_rates(self, now: int) -> Steps[None]:
        """Open all gates that a rate has shut: the clock went back."""
        if self._known is not None:
            ahead = [gate["_id"] for gate in self._known.values() if gate["shut_by"] is None and gate["at"] > now]
            yield from self._set(ahead, None, 0)
            return
        later: Document = {"shut_by": None, "at": {"$gt": now}}
        yield from update("gates", [{"q": later, "u": {"$set": {"at": 0}}, "multi": True}])

    def shut(self, gates: Iterable[Document], closed: Mapping[str, Closed], now: int) -> Steps[None]:
        """Shut the gates whose limits are used up."""
        reasons: dict[Closed, list[str]] = {}
        for gate in gates:
            if gate["limits"] in closed:
                reasons.setdefault(closed[gate["limits"]], []).append(gate["_id"])
        for why, ids in reasons.items():
            if why.opens_at is None:
                yield from self._set(ids, f"k{why.key}", now)
            else:
                yield from self._set(ids, None, why.opens_at)

    def move_to_the_end(self, ids: Sequence[str], now: int) -> Steps[None]:
        """Let other gates come first next time."""
        yield from self._set(ids, None, now)

    def forget(self, ids: Sequence[str]) -> Steps[None]:
        """Remove those of these gates that have no jobs, not even expired ones."""
        if not ids:
            return
        there = yield from aggregate(
            "places",
            [
                {"$match": {"place": {"$in": list(ids)}}},
                {"$sort": {"place": 1, "order": 1, "tie": 1, "_id": 1}},
                {"$group": {"_id": "$place"}},
            ],
        )
        if empty := sorted(set(ids) - {group["_id"] for group in there}):
            yield from delete("gates", {"_id": {"$in": empty}})
            if self._known is not None:
                self._known = {id: gate for id, gate in self._known.items() if id not in empty}

    def write(self, now: int) -> Steps[None]:
        """Write the changes of gates in memory."""
        states: dict[tuple[str | None, int], list[str]] = {}
        for id, gate in (self._known or {}).items():
            if gate is not self._stored[id] and _differs(self._stored[id], gate, now):
                states.setdefault((gate["shut_by"], gate["at"]), []).append(id)
        yield from update("gates", [_statement(ids, *state) for state, ids in states.items()])

    def _set(self, ids: Sequence[str], shut_by: str | None, at: int) -> Steps[None]:
        if not ids:
            return
        if self._known is None:
            yield from update("gates", [_statement(ids, shut_by, at)])
            return
        for id in ids:
            if id in self._known:
                self._known[id] = self._known[id] | {"shut_by": shut_by, "at": at}


def _find_wanted(condition: Document, most: int, sort: Document | None = None) -> Steps[list[Document]]:
    """Find gates that fit. Those of few named queues are found by the beginnings of their ids: the index of open gates
    would lead through the gates of all other queues."""
    queues = condition.get("queue", {}).get("$in")
    if queues is None or len(queues) > QUEUES_BY_ID:
        return (yield from find("gates", condition, sort=sort, limit=most))
    if not queues:
        return []
    ours: Document = {"$or": [{"_id": gates_of_queue(queue)} for queue in queues]}
    return (yield from find("gates", condition | ours, sort=sort, limit=most, hint="_id_"))


def _differs(was: Document, gate: Document, now: int) -> bool:
    """Whether a gate must be written. Since when a key has shut it matters only after a long time: where gates are few, all
    of a key are opened together."""
    if gate["shut_by"] is not None and gate["shut_by"] == was["shut_by"]:
        return bool(was["at"] < now - LONG // 2)
    return bool(gate["shut_by"] != was["shut_by"] or gate["at"] != was["at"])


def _statement(ids: Sequence[str], shut_by: str | None, at: int) -> Document:
    return {"q": {"_id": {"$in": list(ids)}}, "u": {"$set": {"shut_by": shut_by, "at": at}}, "multi": True}


def _shut_by(keys: Iterable[str]) -> Document:
    return {"shut_by": {"$in": [f"k{key}" for key in keys]}}


_MEANING: dict[str, Callable[[Any, Any], bool]] = {
    "$lte": lambda value, bound: bool(value <= bound),
    "$in": lambda value, ones: value in ones,
    "$nin": lambda value, ones: value not in ones,
}


def _fits(gate: Document, condition: Document) -> bool:
    """Whether a gate in memory fits a condition, as the server would decide."""
    for name, wanted in condition.items():
        ways = wanted if isinstance(wanted, dict) else {"$in": [wanted]}
        if not all(_MEANING[operator](gate[name], operand) for operator, operand in ways.items()):
            return False
    return True
