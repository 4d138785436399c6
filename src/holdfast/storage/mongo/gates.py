"""Gates: the lanes of parked jobs under the same limits, and whether they are open.

A gate is open, or shut by a rate until an instant (`at`), or shut by a key that is used up (`shut_by`). Only claims under
limits write gates, and one at a time: each writes the note `knock`, so that two at once are a conflict. A claim looks at the
gates that are open and at no others, however many jobs wait behind the rest. A gate at which nobody stands is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.clock import SECOND
from holdfast.job import ANY, ROW_VERSION
from holdfast.storage.contract import Want
from holdfast.storage.limiting import Closed, Place

from .documents import Document, gate_of
from .notes import KNOCK, add, take_off
from .steps import PREFIX, Steps, aggregate, delete, find, update

AT_ONCE = 64  # gates that are looked at together
HEARD = 1_000  # knocks that one claim hears
LONG = 600 * SECOND


class Heard(NamedTuple):
    """What a claim finds when it begins."""

    knocks: list[Document]
    last: int  # when the last claim looked
    paused: frozenset[str]

    @property
    def places(self) -> dict[str, None]:
        return dict.fromkeys(knock["gate"] for knock in self.knocks if "gate" in knock)

    @property
    def keys(self) -> dict[str, None]:
        return dict.fromkeys(knock["key"] for knock in self.knocks if "key" in knock)


# ---- hearing ---------------------------------------------------------------------------------------
def hear(paused: frozenset[str]) -> Steps[Heard | None]:
    """Knocks, the earliest first; None: nobody has knocked, and there is no gate. `paused`: queues."""
    known: Document = {"_id": {"$gte": KNOCK, "$lt": f"{KNOCK}0"}}
    found = yield from find("notes", known, sort={"_id": 1}, limit=HEARD + 1)
    if all(note["_id"] == KNOCK for note in found) and not (yield from find("gates", {}, {"_id": 1}, limit=1)):
        return None
    return Heard(
        [note for note in found if note["_id"] != KNOCK],
        max((int(note["at"]) for note in found if note["_id"] == KNOCK), default=0),
        paused,
    )


def lock(now: int) -> Steps[None]:
    """From here on this claim is the only one."""
    mine: Document = {"$set": {"at": now}, "$inc": {"claims": 1}}
    yield from update("notes", [{"q": {"_id": KNOCK}, "u": mine, "upsert": True}])


def make_known(places: Iterable[str]) -> Steps[None]:
    """Jobs stand there; a gate that is known stays as it is."""
    for_new: Document = {"shut_by": None, "at": 0}
    yield from update(
        "gates",
        [
            {"q": {"_id": place}, "u": {"$setOnInsert": gate_of(place)._asdict() | for_new}, "upsert": True}
            for place in places
        ],
    )


def reopen(keys: Iterable[str], most: int) -> Steps[int]:
    """Open gates that these keys have shut, the longest shut first; gives how many."""
    found = yield from find("gates", _shut_by(keys), {"_id": 1}, sort={"at": 1}, limit=most)
    if found:
        yield from _set([gate["_id"] for gate in found], None, 0)
    return len(found)


def shut_by(keys: Iterable[str]) -> Steps[set[str]]:
    """Those of these keys that have shut gates."""
    stages: list[Document] = [
        {"$match": _shut_by(keys)},
        {"$sort": {"shut_by": 1, "at": 1}},
        {"$group": {"_id": "$shut_by"}},
    ]
    return {group["_id"][1:] for group in (yield from aggregate("gates", stages))}


def _shut_by(keys: Iterable[str]) -> Document:
    return {"shut_by": {"$in": [f"k{key}" for key in keys]}}


def reopen_all_under_rates(now: int) -> Steps[None]:
    """The clock went back: what was to open at an instant is looked at again."""
    ahead: Document = {"shut_by": None, "at": {"$gt": now}}
    yield from update("gates", [{"q": ahead, "u": {"$set": {"at": 0}}, "multi": True}])


def repair(now: int) -> Steps[None]:
    """Have gates looked at that a key has shut for long. Nothing is known that would make this necessary."""
    shut: Document = {"shut_by": {"$gt": ""}, "at": {"$lt": now - LONG}}
    found = yield from find("gates", shut, {"shut_by": 1}, limit=AT_ONCE)
    yield from add(KNOCK, [{"key": key} for key in {gate["shut_by"][1:] for gate in found}])


# ---- looking ---------------------------------------------------------------------------------------
def wanted(want: Want, paused: frozenset[str], *, alone: bool) -> Document:
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


def open_ones(condition: Document, now: int, seen: Collection[str]) -> Steps[list[Document]]:
    """Open gates, those first that nobody has looked at for the longest time."""
    unseen: Document = {"_id": {"$nin": sorted(seen)}} if seen else {}
    opened: Document = {"shut_by": None, "at": {"$lte": now}}
    return (yield from find("gates", opened | condition | unseen, sort={"at": 1}, limit=AT_ONCE))


def heads(most: Mapping[str, int], takeable: Document) -> Steps[dict[str, list[Place]]]:
    """The best jobs at some gates, at most so many of each. One question: a look-up of its own for each gate."""
    if not most:
        return {}
    numbers = {str(number): place for number, place in enumerate(most)}
    stages: list[Document] = [{"$limit": 1}, {"$project": {"_id": 0, "shut_by": 1}}]
    for number, place in numbers.items():
        best: list[Document] = [
            {"$match": {"place": place, **takeable}},
            {"$sort": {"order": 1, "tie": 1, "_id": 1}},
            {"$limit": most[place]},
            {"$project": {"order": 1, "tie": 1}},
        ]
        stages.append({"$lookup": {"from": f"{PREFIX}jobs", "pipeline": best, "as": number}})
    (found,) = yield from aggregate("gates", stages)
    return {
        place: [(int(job["order"]), int(job["tie"]), job["_id"]) for job in found[number]]
        for number, place in numbers.items()
        if found[number]
    }


# ---- writing ---------------------------------------------------------------------------------------
def shut(gates: Iterable[Document], closed: Mapping[str, Closed], now: int) -> Steps[None]:
    """Shut the gates whose limits are used up."""
    reasons: dict[Closed, list[str]] = {}
    for gate in gates:
        if gate["limits"] in closed:
            reasons.setdefault(closed[gate["limits"]], []).append(gate["_id"])
    for why, ids in reasons.items():
        if why.opens_at is None:
            yield from _set(ids, f"k{why.key}", now)
        else:
            yield from _set(ids, None, why.opens_at)


def put_behind(ids: Sequence[str], now: int) -> Steps[None]:
    """These have had their turn."""
    if ids:
        yield from _set(ids, None, now)


def forget(ids: Sequence[str]) -> Steps[None]:
    """Forget those of these gates at which nobody stands, expired jobs neither."""
    if not ids:
        return
    there = yield from aggregate(
        "jobs",
        [
            {"$match": {"place": {"$in": list(ids)}}},
            {"$sort": {"place": 1, "order": 1, "tie": 1, "_id": 1}},
            {"$group": {"_id": "$place"}},
        ],
    )
    if empty := sorted(set(ids) - {group["_id"] for group in there}):
        yield from delete("gates", {"_id": {"$in": empty}})


def heard_of(heard: Heard, kept: Collection[str]) -> Steps[None]:
    """Remove the knocks, but for those of `kept` keys."""
    yield from take_off(knock["_id"] for knock in heard.knocks if knock.get("key") not in kept)


def _set(ids: Sequence[str], shut_by: str | None, at: int) -> Steps[None]:
    state: Document = {"$set": {"shut_by": shut_by, "at": at}}
    yield from update("gates", [{"q": {"_id": {"$in": list(ids)}}, "u": state, "multi": True}])
