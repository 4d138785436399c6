"""Measures for how long a process has reached the store without a gap, and whether the clocks of both run alike.

After an outage every lease in the store is over, and whoever reaps first beats all renewers. So a reaper first shows
that it has reached the store for a while: a third of the lease in question, but at most a minute. Within that time every
living worker renews: a renewal that is not answered is given up after a third of the lease, or after 40 seconds
(`worker.claiming.answer_timeout`), and repeated within a second. A store clock that jumps has the same effect as an outage,
and starts the count again.

A clock that does not move belongs to a test, which moves it by hand: its jumps are meant, and nobody waits for it.
"""

from __future__ import annotations

from ..core.clock import SECOND, boottime
from ..observe import log

GAP = 5.0
JUMP = 2.0
STILL = 1.0
ALL_HAVE_RENEWED = 60 * SECOND  # after so much contact, however long their leases are
FOR_EVER = 10**15


class StoreContact:
    """The contact of one process with the store. Every answer is noted here."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0
        self._offset: float | None = None
        self._seen = (-1, 0.0)  # the store's time, and since when it has been that
        self.by_hand = False

    def note_answer(self) -> None:
        now = boottime()
        if self._since is None or now - self._last > GAP:
            self._since = now
        self._last = now

    @property
    def reached_at(self) -> float:
        """When the store last answered, in seconds since boot."""
        return self._last

    def note_gap(self) -> None:
        self._since = None

    def note_clock(self, store_now: int) -> None:
        """Compare the store's clock with the time since boot."""
        if store_now != self._seen[0]:
            self._seen = store_now, boottime()
        elif boottime() - self._seen[1] >= STILL:
            self.by_hand = True
        if self.by_hand:
            return
        offset = store_now / SECOND - boottime()
        if self._offset is not None and abs(offset - self._offset) > JUMP:
            log.clock_jumped(offset - self._offset)
            self._since = boottime()
        self._offset = offset

    @property
    def unbroken(self) -> int:
        """Microseconds since which every call has been answered."""
        if self.by_hand:
            return FOR_EVER
        if self._since is None or boottime() - self._last > GAP:
            return 0
        return int((boottime() - self._since) * SECOND)

    @property
    def proven(self) -> int:
        """The contact that counts for reaping: a lease that is over can be reaped if this is at least a third of it."""
        return FOR_EVER if self.unbroken >= ALL_HAVE_RENEWED else self.unbroken

    def missing_for(self, lease: int) -> int:
        """Microseconds of contact that are missing before such a lease can be reaped."""
        return min(lease // 3, ALL_HAVE_RENEWED) - self.unbroken
