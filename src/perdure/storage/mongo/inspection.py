"""Looking through what is stored, a few documents at a time, for what cannot be read and what does not agree.

Most of what somebody else wrote is met by a verb and set aside there. What no verb meets is found here: jobs that stand
nowhere because their place, their lease or their edges were spoiled, and documents beside the jobs that have another shape
than ours. What can be made again from the jobs is made again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

from perdure.clock import SECOND
from perdure.job import FINAL, WAITING, Record, State
from perdure.storage.rules import parents_of, set_state

from . import batches, rows, slots
from .documents import Document, has_place, is_gate, marks_of, place_of
from .edges import leave, put, to_put
from .notes import KNOCK, add, kind
from .places import forget
from .shapes import SHAPED, flaws_in
from .steps import Find, Steps, aggregate, find, insert, update
from .unreadable import has_name, is_leased, move_aside, read, set_aside
from .upkeep import let_go

LATE = 5 * SECOND  # after which a lease that is over, or a job that may be removed, should have been met
SEEN = {"payload": 0}  # a payload is looked at by who claims it
Positions = Mapping[str, str]  # by collection: the id behind which to go on


class Inspected(NamedTuple):
    number: int  # of documents that were set aside or put right
    positions: Positions


def inspect(limit: int, positions: Positions, now: int) -> Steps[Inspected]:
    """Look at the next so many documents of each collection."""
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
    """Some documents as they are, and where to go on."""
    key = "_id.name" if collection == "shelf" else "_id"
    later: Document = {key: {"$gt": behind}} if behind else {}
    found: list[Document] = yield Find(collection, later, projection, {key: 1}, limit)
    ids = [each["_id"].get("name") if isinstance(each["_id"], dict) else each["_id"] for each in found]
    texts = [id for id in ids if isinstance(id, str)]
    return found, texts[-1] if len(found) == limit and texts and texts[-1] != behind else ""


def _without_names(now: int) -> Steps[int]:
    """Jobs whose ids are no texts."""
    found = yield from find("jobs", {"_id": {"$not": {"$type": "string"}}}, {"_id": 1}, limit=100)
    yield from set_aside(found, now)
    return len(found)


# ---- beside the jobs -------------------------------------------------------------------------------
def _move_strange(collection: str, found: Sequence[Document], now: int) -> Steps[int]:
    """Set documents aside that have another shape than those of their collection."""
    strange = [(each, flaws) for each in found if (flaws := _flaws(collection, each))]
    if not strange:
        return 0
    yield from move_aside(collection, strange, now)
    if collection == "gates":  # jobs may stand there
        places = [each["_id"] for each, _ in strange if isinstance(each["_id"], str) and is_gate(each["_id"])]
        yield from add(KNOCK, [{"gate": place} for place in places])
    return sum(has_name(each) for each, _ in strange)


def _flaws(collection: str, document: Document) -> list[str]:
    flaws = flaws_in(collection, document)
    if flaws:
        return flaws
    if collection == "gates" and not is_gate(document["_id"]):
        return ["_id"]
    if collection == "notes" and "gate" in document and not is_gate(document["gate"]):
        return ["gate"]
    return []


def _count_slots() -> Steps[int]:
    """How many run under limits, counted from the jobs."""
    held = yield from batches.held()
    running: Counter[str] = Counter()
    for begin in range(0, len(held), rows.AT_ONCE):
        some: Document = {
            "_id": {"$in": held[begin : begin + rows.AT_ONCE]},
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
    yield from slots.note(wrong)
    return len(wrong)


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
    number += yield from _mend_edges(
        [record for record in records if record.state is State.BLOCKED and record.after], now
    )
    return number


def _give_places(records: Sequence[Record]) -> Steps[int]:
    """Let waiting jobs stand where they belong, and parked ones at a gate that is known."""
    wanted = {record.id: place_of(record) for record in records}
    found = yield from find("places", {"_id": {"$in": list(wanted)}})
    stands = {each["_id"]: each for each in found}
    wrong = [id for id, place in wanted.items() if stands.get(id) != place]
    yield from forget(wrong)
    yield from insert("places", [place for id in wrong if (place := wanted[id]) is not None])
    gates = {wanted[record.id]["place"] for record in records if record.parked and has_place(record)}  # type: ignore[index]
    known = (
        {each["_id"] for each in (yield from find("gates", {"_id": {"$in": sorted(gates)}}, {"_id": 1}))}
        if gates
        else set()
    )
    yield from add(KNOCK, [{"gate": gate} for gate in sorted(gates - known)])
    return len(wrong)


def _note_late(records: Sequence[Record], now: int) -> Steps[None]:
    """Note leases that are long over, and ended jobs that should be gone: their batches may be lost."""
    late = [
        record
        for record in records
        if (record.stamp is not None and (record.leased_until or 0) < now - LATE)
        or (record.state in FINAL and record.prune_at is not None and record.prune_at < now - LATE)
    ]
    yield from batches.note((None, record) for record in late)


def _mend_edges(waiting: Sequence[Record], now: int) -> Steps[int]:
    """Make edges again that are lost, and let a blocked job wait for as many as it has open ones."""
    ids = [record.id for record in waiting]
    if not ids:
        return 0
    unsettled = yield from find("notes", {"_id": kind("unsettled"), "job": {"$in": ids}}, {"job": 1})
    busy = {entry["job"] for entry in unsettled if "job" in entry}
    waiting = [record for record in waiting if record.id not in busy]
    found = yield from find("edges", {"child": {"$in": ids}})
    known: dict[str, set[str]] = defaultdict(set)
    open_ones: Counter[str] = Counter()
    for edge in found:
        known[edge["child"]].add(edge["parent"])
        open_ones[edge["child"]] += bool(edge.get("open"))
    lost = [
        (record, missing)
        for record in waiting
        if (missing := [parent for parent in parents_of(record.after) if parent not in known[record.id]])
    ]
    yield from put(to_put(lost))
    yield from leave({parent for _, parents in lost for parent in parents})
    for record, parents in lost:
        open_ones[record.id] += len(parents)
    wrong = [record for record in waiting if record.waits != open_ones[record.id]]
    before = {record.id: copy(record) for record in wrong}
    for record in wrong:
        record.waits = open_ones[record.id]
        if record.waits == 0:
            record.version += 1
            set_state(record, State.SCHEDULED if record.run_at > now else State.READY)
    yield from rows.write(before, wrong)
    return len(lost) + len(wrong)
