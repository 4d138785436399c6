"""Limit wake-ups: how a claim under limits hears that parked jobs have come to a gate, or that a key has room again.

Whoever parks a job, or gives up the hold of one under limits, only adds a small document here, in the same transaction. So
it meets nobody, and nothing is lost: only a claim, one at a time, opens and closes gates, and it removes the wakeups that
it has heard. One that came too late for its snapshot is heard by the next claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from perdure.core.record import Record
from perdure.storage.rules.limits import keys_of

from ..connection.operations import Insert, Steps, hold_back_inserts
from ..reading.records import Document, position_text
from ..writing.small_documents import WAKEUP, add

T = TypeVar("T")
Move = tuple[Record | None, Record]  # how a job stood, and how it stands


def notify_limit_claimers(moves: Iterable[Move]) -> Steps[None]:
    """Tell of jobs that were parked, and of holds under limits that were given up."""
    limited = [(before, after) for before, after in moves if after.limits is not None]
    parked = dict.fromkeys(position_text(after) for _, after in limited if after.parked)
    given_up = [after.limits for before, after in limited if _is_held(before) and not _is_held(after)]
    documents: list[Document] = [{"gate": place} for place in parked]
    yield from add(WAKEUP, documents + [{"key": key} for key in keys_of(given_up)])


def wake_limit_claimers_for(records: Sequence[Record]) -> Steps[None]:
    """Tell of jobs that have come from elsewhere, in place of others that may have been held."""
    yield from notify_limit_claimers((msgspec.structs.replace(record, stamp=0), record) for record in records)


def collect_wakeups(steps: Steps[T], kept: list[Document]) -> Steps[T]:
    """The same steps, but their wakeups are given to the caller, who hears them or puts them on record."""

    def keeps(step: Insert) -> bool:
        wakeups = step.collection == "notes" and all(each["_id"].startswith(f"{WAKEUP}/") for each in step.documents)
        if wakeups:
            kept.extend(step.documents)
        return wakeups

    return (yield from hold_back_inserts(steps, keeps))


def _is_held(record: Record | None) -> bool:
    return record is not None and record.stamp is not None
