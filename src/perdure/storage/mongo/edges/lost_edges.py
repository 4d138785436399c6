"""Repairs blocked jobs whose edges are lost, or whose parents are not marked as followed.

The edges are made again from `after`, and the parents are put on the list for `resolve_edges`. Jobs that a caller's
transaction enqueued are on that list already and are left alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy

from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.rules.records import EdgeDecision, decide_edge, edges_are_lost, parents_of, write_close

from ..connection.operations import Steps, find
from ..limits.limit_wakeups import notify_limit_claimers
from ..reading.records import Document
from ..writing import updates
from ..writing.small_documents import kind
from .edges import edges_to_put, leave, put

Parents = Mapping[str, set[str]]  # by child


def mend(records: Sequence[Record], now: int) -> Steps[int]:
    """Repair the edges of those of these jobs that are blocked; returns how many needed it."""
    blocked = [record for record in records if record.state is State.BLOCKED]
    blocked = yield from _not_on_the_list(blocked)
    if not blocked:
        return 0
    find_open = yield from _open_edges([record.id for record in blocked])
    lost = [record for record in blocked if edges_are_lost(record.waits, len(find_open[record.id]))]
    before = {record.id: copy(record) for record in lost}
    named = {record.id: parents_of(record.after) for record in lost}
    yield from put(edges_to_put((record, named[record.id]) for record in lost))
    for record in lost:
        if named[record.id]:
            record.waits = len(find_open[record.id].union(named[record.id]))
        elif not find_open[record.id] and record.waits == 0:
            record.waits = 1
            write_close(record, now)
    yield from updates.write(before, [record for record in lost if record != before[record.id]])
    yield from notify_limit_claimers((before[record.id], record) for record in lost)
    unaware = yield from _unaware([record for record in blocked if record.id not in before], find_open)
    yield from leave(sorted(unaware.union(*named.values())))
    return len(unaware) + sum(bool(named[record.id]) or record != before[record.id] for record in lost)


def _not_on_the_list(records: Sequence[Record]) -> Steps[list[Record]]:
    if not records:
        return []
    listed = yield from _find_listed([record.id for record in records])
    return [record for record in records if record.id not in listed]


def _find_listed(ids: Sequence[str]) -> Steps[set[str]]:
    """Those of these jobs that are on the list for `resolve_edges`."""
    notes = yield from find("notes", {"_id": kind("unresolved"), "job": {"$in": list(ids)}}, {"job": 1})
    return {note["job"] for note in notes if "job" in note}


def _open_edges(ids: Sequence[str]) -> Steps[Parents]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for edge in (yield from find("edges", {"child": {"$in": list(ids)}, "open": True})):
        found[edge["child"]].add(edge["parent"])
    return found


def _unaware(children: Sequence[Record], find_open: Parents) -> Steps[set[str]]:
    """Parents that must be resolved and are on no list: missing, not marked as followed, or ended in a state that does not
    leave a child waiting."""
    wanted: dict[str, set[str]] = defaultdict(set)  # how the children of a parent wait
    for child in children:
        for parent in find_open[child.id]:
            wanted[parent].add(child.run_when)
    if not wanted:
        return set()
    seen: Document = {"state": 1, "next_id": 1, "hidden": 1, "followed": 1}
    known = {each["_id"]: each for each in (yield from find("jobs", {"_id": {"$in": sorted(wanted)}}, seen))}
    doubtful = [id for id, ways in wanted.items() if _is_unaware(known.get(id), ways)]
    return set(doubtful) - (yield from _find_listed(doubtful))


class _Parent:
    """The fields of a job that decide about its edges."""

    def __init__(self, document: Document) -> None:
        self.state = State(document["state"])
        self.next_id = document.get("next_id")
        self.hidden = bool(document.get("hidden"))


def _is_unaware(document: Document | None, ways: set[str]) -> bool:
    if document is None:
        return True
    try:
        parent = _Parent(document)
    except (KeyError, ValueError):  # it is set aside first
        return False
    return not document.get("followed") or any(decide_edge(parent, way) is not EdgeDecision.STAY for way in ways)
