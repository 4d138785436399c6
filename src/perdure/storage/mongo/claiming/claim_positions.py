"""The positions of waiting jobs: one small document for each, inserted when it enters a lane or a gate, removed when it
leaves.

This is no field of the job itself, because a transaction pays more for a changed index of the jobs than for a document that
is removed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.record import Record

from ..connection.operations import Steps, delete, insert
from ..reading.records import Document, has_place, place_of

IN_ORDER = {"order": 1, "tie": 1, "_id": 1}


def move(moves: Iterable[tuple[Record, Record]]) -> Steps[None]:
    """Move jobs from their old positions to their new ones."""
    left: list[str] = []
    taken: list[Document] = []
    for before, after in moves:
        stood, stands = has_place(before), has_place(after)
        place = place_of(after) if stands else None
        if stood and stands and place == place_of(before):
            continue
        if stood:
            left.append(before.id)
        if place is not None:
            taken.append(place)
    yield from forget(left)
    yield from insert("places", taken)


def enter(records: Iterable[Record]) -> Steps[None]:
    """Insert the positions of new jobs."""
    yield from insert("places", [place for record in records if (place := place_of(record)) is not None])


def forget(ids: Sequence[str]) -> Steps[None]:
    if ids:
        yield from delete("places", {"_id": {"$in": list(ids)}})


def not_expired(now: int) -> Document:
    """The condition for jobs that are not expired. A job that has started before never expires."""
    return {"expires_at": {"$not": {"$lte": now}}}
