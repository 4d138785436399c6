"""A clock that a test moves by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from perdure.core.clock import datetime_of, instant_of

_START = datetime(2030, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ManualClock:
    """A clock that moves only when a test moves it, forward or back.

    >>> clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    >>> clock.advance(90)
    >>> clock.now().isoformat()
    '2030-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime = _START) -> None:
        self._lock = threading.Lock()
        self._micros = self.started_at = instant_of(start, "start")

    def now(self) -> datetime:
        return datetime_of(self._micros)

    def micros(self) -> int:
        """The instant in microseconds since the epoch, as the stores read it."""
        return self._micros

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass; a negative amount moves the clock back."""
        duration = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        with self._lock:
            self._micros += duration // _MICROSECOND

    def set(self, moment: datetime) -> None:
        """Jump to an aware datetime."""
        with self._lock:
            self._micros = instant_of(moment, "moment")

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"
