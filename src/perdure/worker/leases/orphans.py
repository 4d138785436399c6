"""Finds orphans: attempts that a worker holds and that no part of it works on.

The lease keeper renews everything that is held, so an orphan would stay `running` for ever. Every part that has attempts
lists them: slots, followers, completion queue and claim loop. An attempt that is held and on no list is an orphan. There
should never be one: the tests fail when they see one. If a worker finds one all the same, it hands the job back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..running.attempt import Attempt
from .held_jobs import HeldJobs


class Orphans:
    """Compares what is held with the lists of all parts."""

    def __init__(self, held: HeldJobs, *lists: Callable[[], Iterable[Attempt]]) -> None:
        self._held = held
        self._lists = lists
        self._seen: set[Attempt] = set()
        self.closed = False

    def now(self) -> list[Attempt]:
        """Attempts that are on no list at this moment. One may be on its way from one list to another."""
        if self.closed or not len(self._held):
            return []
        listed = {attempt for attempts in self._lists for attempt in attempts()}
        return self._held.where(lambda attempt: attempt not in listed)

    def lasting(self) -> list[Attempt]:
        """Attempts that are on no list now, and were on none at the last call."""
        before, self._seen = self._seen, set(self.now())
        return [attempt for attempt in self._seen if attempt in before]

    def close(self) -> None:
        """The worker does not check what it holds any more."""
        self.closed = True
