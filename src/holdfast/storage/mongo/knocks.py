"""Knocks: how a claim under limits hears that parked jobs have come to a gate, or that a key has room again.

Whoever parks a job, or gives up the hold of one under limits, only adds a small document here, in the same transaction. So
it meets nobody, and nothing is lost: only a claim, one at a time, opens and closes gates, and it removes the knocks that
it has heard. One that came too late for its snapshot is heard by the next claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.job import Record
from holdfast.storage.limiting import keys_of

from .documents import Document, standing_place
from .notes import KNOCK, add
from .steps import Steps

Move = tuple[Record | None, Record]  # how a job stood, and how it stands


def knock(moves: Iterable[Move]) -> Steps[None]:
    """Tell of jobs that were parked, and of holds under limits that were given up."""
    places: dict[str, None] = {}
    keys: dict[str, None] = {}
    for before, after in moves:
        if after.limits is None:
            continue
        if after.parked:
            places[standing_place(after)] = None
        if before is not None and before.stamp is not None and after.stamp is None:
            keys |= dict.fromkeys(keys_of([after.limits]))
    documents: list[Document] = [{"gate": place} for place in places]
    yield from add(KNOCK, documents + [{"key": key} for key in keys])
