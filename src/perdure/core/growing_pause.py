"""Pauses between tries that double up to a maximum."""

from __future__ import annotations

import random


class GrowingPause:
    """The first pause lasts `shortest` seconds, the next twice as long, and so on up to `longest`.

    With `jitter`, each pause is shortened at random by up to a half, so that many processes do not try again together.
    """

    def __init__(self, shortest: float, longest: float, *, jitter: bool = True) -> None:
        self._shortest = shortest
        self._longest = longest
        self._jitter = jitter
        self._seconds = shortest

    @property
    def is_first(self) -> bool:
        """Whether there was no pause since the last reset."""
        return self._seconds == self._shortest

    def next(self) -> float:
        """Seconds to pause now."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self._longest)
        return seconds * random.uniform(0.5, 1.0) if self._jitter else seconds

    def reset(self) -> None:
        """The trouble is over: the next one starts with a short pause."""
        self._seconds = self._shortest
