"""Limits how often the same line is logged: trouble that lasts is logged once a minute, not once a second."""

from __future__ import annotations

from threading import Lock
from time import monotonic

REPEATED_EVERY = 60.0  # seconds before the same line is logged again
MOST_LINES = 1_000


class LogLimit:
    """Remembers the lines of one logger, or of one part of a program. May be used from any thread."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}  # lines, and when each was logged
        self._lock = Lock()

    def is_new(self, line: str) -> bool:
        """Whether this line was not logged within the last minute. From now on it was."""
        now = monotonic()
        with self._lock:
            if now - self._logged.get(line, -REPEATED_EVERY) < REPEATED_EVERY:
                return False
            if len(self._logged) >= MOST_LINES:
                self._forget_some(now)
            self._logged[line] = now
        return True

    def clear(self) -> None:
        self._logged.clear()

    def _forget_some(self, now: float) -> None:
        old = [line for line, at in self._logged.items() if now - at >= REPEATED_EVERY]
        for line in old or list(self._logged)[: MOST_LINES // 2]:
            del self._logged[line]


of_process = LogLimit()
is_new = of_process.is_new
