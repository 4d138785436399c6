"""Inspects stored documents, a few at a time, and sets aside or repairs what is wrong.

Verbs set most unreadable documents aside when they read them. Inspection finds the others: jobs without a place, a lease or
edges, because these were spoiled, and documents beside the jobs that do not have our shape. What can be derived from the
jobs is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from perdure.core.clock import SECOND
from perdure.core.job import FINAL, WAITING
from perdure.core.record import Record
from perdure.storage.rules.limits import keys_of, limits_of

from ..claiming.claim_positions import forget
from ..connection.operations import Find, Steps, aggregate, find, insert, update
from ..edges import lost_edges
from ..limits import running_counts
from ..reading.document_shapes import SHAPED, flaws_in
from ..reading.records import Document, gate_of, is_gate, marks_of, place_of
from ..writing import updates
from ..writing.small_documents import WAKEUP, add
from . import lease_batches
from .unreadable import has_name, is_leased, move_aside, read, set_aside
from .upkeep import let_go

SHUT = 1_000  # gates that are looked at in one inspection
LATE = 5 * SECOND  # after which a lease that is over, or a job that may be removed, should have been met
PAGES = 4  # of jobs in one inspection, each in a transaction of its own
SEEN = {"payload": 0}  # a payload is looked at by who claims it
Positions = Mapping[str, str]  # by collection: the id behind which to go on


class Inspected(NamedTuple):
    number: int  # of documents that were set aside or put right
    positions: Positions


def inspect(limit: int, positions: Positions, now: int) -> Steps[Inspected]:
    """Inspect the next documents of each collection."""
    number, after = 0, dict(positions)
    for collection in SHAPED:
        found, after[collection] = yield from _next(collection, limit, positions.get(collection, ""))
        number += yield from _move_strange(collection, found, now)
    found, after["jobs"] = yield from _next("jobs", limit, positions.get("jobs", ""), SEEN)
    records, bad = read(found)
    number += len((yield from set_aside([each for each in bad if not is_leased(each, now)], now)))
    number += yield from _put_right(records, {each["_id"]: each.get("marks") for each in found}, now)
    if not after["jobs"]:
        number += yield from _without_names(now)
        number += yield from _count_slots()
    return Inspected(number, after)


def _next(
    collection: str, limit: int, behind: str, projection: Document | None = None
) -> Steps[tuple[list[Document], str]]:
    """The next documents as they are, and where to continue."""
    key = "_id.name" if collection == "kv" else "_id"
    later: Document = {key: {"$gt": behind}} if behind else {}
    found: list[Document] = yield Find(collection, later, projection, {key: 1}, limit)
    ids = [each["_id"].get("name") if isinstance(each["_id"], dict) else each["_id"] for each in found]
    texts = [id for id in ids if isinstance(id, str)]
    return found, texts[-1] if len(found) == limit and texts and texts[-1] != behind else ""


def _without_names(now: int) -> Steps[int]:
    """Set jobs aside whose ids are no texts."""
    found = yield from find("jobs", {"_id": {"$not": {"$type": "string"}}}, {"_id": 1}, limit=100)
    yield from set_aside(found, now)
    return len(found)


# ---- beside the jobs -------------------------------------------------------------------------------
def _move_strange(collection: str, found: Sequence[Document], now: int) -> Steps[int]:
    """Set documents aside that do not have the shape of their collection."""
    strange = [(each, flaws) for each in found if (flaws := _flaws(collection, each, now))]
    if not strange:
        return 0
    yield from move_aside(collection, strange, now)
    if collection == "gates":  # jobs may stand there
        places = [each["_id"] for each, _ in strange if isinstance(each["_id"], str) and is_gate(each["_id"])]
        yield from add(WAKEUP, [{"gate": place} for place in places])
    return sum(has_name(each) for each, _ in strange)


def _flaws(collection: str, document: Document, now: int) -> list[str]:
    flaws = flaws_in(collection, document)
    if flaws:
        return flaws
    if collection == "gates":
        return _flaws_of_gate(document, now)
    if collection == "slots":
        return [] if document["keys"] == _keys(document["limits"]) else ["keys"]
    if collection == "notes" and "gate" in document and not is_gate(document["gate"]):
        return ["gate"]
    return []


def _flaws_of_gate(gate: Document, now: int) -> list[str]:
    """The fields of a gate must agree with its id. One of its keys has shut it, or a rate has, for no longer than its
    window."""
    if not is_gate(gate["_id"]):
        return ["_id"]
    flaws = [name for name, value in gate_of(gate["_id"])._asdict().items() if gate[name] != value]
    if flaws:
        return flaws
    keys = _keys(gate["limits"])
    if keys is None:
        return ["limits"]
    if gate["shut_by"] is not None and gate["shut_by"][1:] not in keys:
        return ["shut_by"]
    return ["at"] if gate["at"] > now + _longest_window(gate["limits"]) else []


def _keys(limits: str) -> list[str] | None:
    try:
        return keys_of([limits])
    except (msgspec.MsgspecError, ValueError):
        return None


def _longest_window(limits: str) -> int:
    return max((limit.window or 0 for limit in limits_of(limits)), default=0) + LATE


def _count_slots() -> Steps[int]:
    """Count from the jobs how many run under limits, and correct the slots."""
    held = yield from lease_batches.held()
    running: Counter[str] = Counter()
    for begin in range(0, len(held), updates.AT_ONCE):
        some: Document = {
            "_id": {"$in": held[begin : begin + updates.AT_ONCE]},
            "stamp": {"$ne": None},
            "limits": {"$type": 2},
        }
        running.update(each["limits"] for each in (yield from find("jobs", some, {"limits": 1})))
    stages = [{"$group": {"_id": "$limits", "jobs": {"$sum": {"$ifNull": ["$jobs", 1]}}}}]
    noted = {
        each["_id"]: each["jobs"] for each in (yield from aggregate("slots", stages)) if isinstance(each["_id"], str)
    }
    wrong = {limits: running[limits] - int(noted.get(limits, 0)) for limits in {*running, *noted}}
    wrong = {limits: jobs for limits, jobs in wrong.items() if jobs}
    yield from running_counts.note(wrong)
    yield from _wake_limit_claimers_for_room(running)
    return len(wrong)


def _wake_limit_claimers_for_room(running: Mapping[str, int]) -> Steps[None]:
    """Send wake-ups for gates that are shut by a key with room: a wake-up may be lost. `running`: how many jobs run under
    which limits."""
    by_key: Counter[str] = Counter()
    for limits, jobs in running.items():
        by_key.update(dict.fromkeys(_keys(limits) or (), jobs))
    shut = yield from find("gates", {"shut_by": {"$gt": ""}}, limit=SHUT)
    roomy = {
        limit.key
        for gate in shut
        for limit in limits_of(gate["limits"])
        if gate["shut_by"] == f"k{limit.key}" and limit.most is not None and by_key[limit.key] < limit.most
    }
    yield from add(WAKEUP, [{"key": key} for key in sorted(roomy)])


# ---- jobs that stand nowhere -----------------------------------------------------------------------
def _put_right(records: Sequence[Record], marks: Mapping[str, object], now: int) -> Steps[int]:
    held = [record for record in records if record.state in WAITING and record.stamp is not None]
    yield from let_go(held)
    records = [record for record in records if record not in held]
    right = {record.id: marks_of(record) for record in records}
    unmarked = [id for id, wanted in right.items() if marks.get(id) != wanted]
    yield from update("jobs", [{"q": {"_id": id}, "u": {"$set": {"marks": right[id]}}} for id in unmarked])
    number = len(unmarked) + len(held)
    number += yield from _give_places(records)
    yield from _note_late(records, now)
    return number + (yield from lost_edges.mend(records, now))


def _give_places(records: Sequence[Record]) -> Steps[int]:
    """Give waiting jobs their right places, and parked ones a known gate."""
    wanted = {record.id: place_of(record) for record in records}
    found = yield from find("places", {"_id": {"$in": list(wanted)}})
    stands = {each["_id"]: each for each in found}
    wrong = [id for id, place in wanted.items() if stands.get(id) != place]
    yield from forget(wrong)
    yield from insert("places", [place for id in wrong if (place := wanted[id]) is not None])
    gates = {place["place"] for place in wanted.values() if place is not None and is_gate(place["place"])}
    known = (yield from find("gates", {"_id": {"$in": sorted(gates)}}, {"_id": 1})) if gates else []
    unknown = gates - {gate["_id"] for gate in known}
    yield from add(WAKEUP, [{"gate": gate} for gate in sorted(unknown)])
    return len(wrong)


def _note_late(records: Sequence[Record], now: int) -> Steps[None]:
    """Add batches for leases that are long over and for ended jobs that should be gone: theirs may be lost."""
    late = [
        record
        for record in records
        if (record.stamp is not None and (record.leased_until or 0) < now - LATE)
        or (record.state in FINAL and record.prune_at is not None and record.prune_at < now - LATE)
    ]
    yield from lease_batches.note((None, record) for record in late)
