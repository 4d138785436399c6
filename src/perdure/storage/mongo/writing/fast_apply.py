"""A fast path: the store applies a change to a job that it claimed itself without reading the job again.

It remembers jobs as its claims left them. The statement that writes the change has the condition that state, stamp and
version are still the same and that no job follows this one. Renewals, starts and progress change none of these. If one job
of a list is different by now, the transaction is undone (`Outdated`) and runs again with these jobs read. Jobs with a unique
key, an expiry or followers are always read: other processes may change what must be known about them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from itertools import islice

from perdure.core.change import Change, HoldGuard
from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.rules import fast_path
from perdure.storage.rules.guards import is_held

from ..reading.records import Document

REMEMBERED = 20_000  # jobs; one that is forgotten is read when it ends
UNKNOWN = -1  # an instant at which no lease ends


class Outdated(Exception):
    """A job that was written without being read is not as its claim left it."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__()
        self.ids = ids


class ClaimedJobs:
    """Jobs as the claims of this store left them, the latest last."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def add(self, records: Sequence[Record]) -> None:
        for record in records:
            self._records.pop(record.id, None)
            self._records[record.id] = _certain_part_of(record)
        self.forget(list(islice(self._records, max(0, len(self._records) - REMEMBERED))))

    def forget(self, ids: Collection[str]) -> None:
        for id in ids:
            self._records.pop(id, None)

    def of(self, changes: Sequence[Change]) -> dict[str, Record]:
        return {change.id: self._records[change.id] for change in changes if change.id in self._records}


def _certain_part_of(record: Record) -> Record:
    """What is known of a claimed job as long as its hold and version are the same. Its lease may be renewed; long texts are
    not needed, because a change writes a new one or leaves it."""
    known = copy(record)
    known.leased_until = UNKNOWN
    known.payload = ""
    known.meta = known.progress = known.errors = None
    return known


def try_fast_rows(changes: Sequence[Change], claimed: Mapping[str, Record]) -> dict[str, Record]:
    """The rows of those jobs that need not be read."""
    rows: dict[str, Record] = {}
    if not fast_path.enabled():
        return rows
    for change in changes:
        row, guard = claimed.get(change.id), change.guard
        if row is None or row.followed or row.unique_key is not None or row.expires_at is not None:
            continue
        if isinstance(guard, HoldGuard) and not guard.ended and is_held(row, guard.attempt, guard.stamp):
            rows[row.id] = copy(row)
    return rows


def condition_for(before: Record) -> Document:
    """The condition under which a job is still as its claim left it. Every other change raises the version; a new follower
    does not, but it marks the job as followed."""
    return {"state": State.RUNNING.value, "stamp": before.stamp, "version": before.version, "followed": None}
