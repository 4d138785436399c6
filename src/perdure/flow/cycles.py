"""Finds cycles: a job that continues with jobs that wait for it would wait for ever, and so would they.

The check runs when a job continues with a call `after=` others, but not inside a handler's own transaction, which may hold
the only connection there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.job import State
from ..core.lifecycle import Change
from ..core.record import NewJob, Record
from ..errors import InvalidCall
from ..storage.contract import Storage


def parents_outside(change: Change) -> set[str]:
    """The stored jobs that the new jobs of a chain wait for."""
    new = {job.id for job in change.adds}
    return {parent for job in change.adds for parent in _parents(job)} - new


async def find_cycle(storage: Storage, change: Change) -> InvalidCall | None:
    """What is wrong with going on like this, if one of those parents waits for the job itself, by whatever way."""
    ahead, seen = parents_outside(change), set[str]()
    while ahead and change.id not in ahead:
        seen |= ahead
        records = await storage.get(sorted(ahead))
        ahead = {id for record in records if record is not None for id in _waits_for(record)} - seen
    if not ahead:
        return None
    return InvalidCall(
        "Continue with a call after= a job that waits for this one would wait for ever: a job is over when its chain is"
    )


def _waits_for(record: Record) -> Sequence[str]:
    if record.next_id is not None:
        return (record.next_id,)
    return _parents(record) if record.state is State.BLOCKED else ()


def _parents(job: NewJob | Record) -> list[str]:
    return msgspec.json.decode(job.after or "[]", type=list[str])
