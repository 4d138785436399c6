"""Rows as moves look at them, and the difference that a move makes, written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.job import Record, State

from .documents import SLIM, Document, records_from, update_of
from .holders import hand_over
from .steps import Steps, find, gathered, update

AT_ONCE = 20_000  # ids in one question


def look(ids: Collection[str], projection: Document = SLIM) -> Steps[dict[str, Record]]:
    """The rows of these jobs, as far as guards and moves look at them."""
    if not ids:
        return {}
    found = yield from find("jobs", {"_id": {"$in": list(ids)}}, projection)
    return {record.id: record for record in records_from(found)}


def on_record(ids: Sequence[str]) -> Steps[set[str]]:
    """Which of these jobs are there; there may be very many."""
    return (yield from _there(ids, {}))


def followable(ids: Sequence[str]) -> Steps[set[str]]:
    """The same, without those that were deleted before they were done."""
    done = [State.SUCCEEDED.value, State.SKIPPED.value]
    return (yield from _there(ids, {"$or": [{"hidden": {"$ne": True}}, {"state": {"$in": done}}]}))


def _there(ids: Sequence[str], condition: Document) -> Steps[set[str]]:
    known: set[str] = set()
    for begin in range(0, len(ids), AT_ONCE):
        found = yield from find("jobs", {"_id": {"$in": ids[begin : begin + AT_ONCE]}, **condition}, {"_id": 1})
        known |= {document["_id"] for document in found}
    return known


def takeable(now: int) -> Document:
    """The condition for jobs that are not expired; one that has been started before may be retried for ever."""
    return {"$or": [{"expires_at": None}, {"expires_at": {"$gt": now}}, {"started_at": {"$ne": None}}]}


def write(before: Mapping[str, Record], moved: Sequence[Record]) -> Steps[None]:
    """The difference that moves have made, and what becomes of keys by them."""
    yield from update("jobs", gathered({row.id: update_of(before[row.id], row) for row in moved}))
    yield from hand_over((before[row.id], row) for row in moved)
