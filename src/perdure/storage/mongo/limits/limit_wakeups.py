"""Limit wake-ups: tell claims under limits that jobs were parked at a gate, or that a key has room again.

A transaction that parks a job, or gives up a hold under limits, only inserts a note. So it causes no conflict, and nothing
is lost: only claims, one at a time, open and shut gates, and they remove the wake-ups that they have read. The next claim
reads a wake-up that came too late for the snapshot of this one.
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
    """Add wake-ups for jobs that were parked, and for holds under limits that were given up."""
    limited = [(before, after) for before, after in moves if after.limits is not None]
    parked = dict.fromkeys(position_text(after) for _, after in limited if after.parked)
    given_up = [after.limits for before, after in limited if _is_held(before) and not _is_held(after)]
    documents: list[Document] = [{"gate": place} for place in parked]
    yield from add(WAKEUP, documents + [{"key": key} for key in keys_of(given_up)])


def wake_limit_claimers_for(records: Sequence[Record]) -> Steps[None]:
    """Add wake-ups for restored jobs, which may replace jobs that were held."""
    yield from notify_limit_claimers((msgspec.structs.replace(record, stamp=0), record) for record in records)


def collect_wakeups(steps: Steps[T], kept: list[Document]) -> Steps[T]:
    """The same operations, but their wake-ups go to `kept`; the caller uses or stores them."""

    def keeps(step: Insert) -> bool:
        wakeups = step.collection == "notes" and all(each["_id"].startswith(f"{WAKEUP}/") for each in step.documents)
        if wakeups:
            kept.extend(step.documents)
        return wakeups

    return (yield from hold_back_inserts(steps, keeps))


def _is_held(record: Record | None) -> bool:
    return record is not None and record.stamp is not None
