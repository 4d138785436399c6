"""Where waiting jobs stand: a small document for each, inserted when it comes to a lane or a gate, removed when it leaves.

A document for each job, and no field of the job itself: to change a field that is in an index costs a transaction more than
to remove a document here and to write the job without touching any index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.record import Record

from ..connection.operations import Steps, delete, insert
from ..reading.records import Document, has_place, place_of

IN_ORDER = {"order": 1, "tie": 1, "_id": 1}


def move(moves: Iterable[tuple[Record, Record]]) -> Steps[None]:
    """Take jobs from where they stood to where they stand."""
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
    """Let new jobs stand where they belong."""
    yield from insert("places", [place for record in records if (place := place_of(record)) is not None])


def forget(ids: Sequence[str]) -> Steps[None]:
    if ids:
        yield from delete("places", {"_id": {"$in": list(ids)}})


def not_expired(now: int) -> Document:
    """The condition for jobs that are not expired; one that has been started before may be retried for ever."""
    return {"expires_at": {"$not": {"$lte": now}}}
