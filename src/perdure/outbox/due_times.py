"""The times of a job that was enqueued in one database and stored in another.

A delay and an expiry count from the enqueue, not from the move. The order of the outbox is kept: the store claims by due
time, then by id, and ids come from many processes, so the due times rise with the rows. No job is due later than now
because the clock of the outbox is ahead.
"""

from __future__ import annotations

import msgspec

from ..core.record import NewJob


class DueTimes:
    """Gives out due times that rise, over all batches of a relay."""

    def __init__(self) -> None:
        self._last = (0, "")

    def of(self, job: NewJob, enqueued_at: int, now: int) -> NewJob:
        """The job as it is to be enqueued at this instant of the store's clock."""
        at = job.at
        if at is None:
            at = enqueued_at + job.delay if job.delay > 0 else self._next(job.id, min(enqueued_at, now))
        expires = None if job.expires is None else max(1, enqueued_at + job.expires - now)
        return msgspec.structs.replace(job, at=at, delay=0, expires=expires)

    def _next(self, id: str, at: int) -> int:
        last_at, last_id = self._last
        if (at, id) <= self._last:
            at = last_at if id > last_id else last_at + 1
        self._last = (at, id)
        return at
