"""Delays that grow: before the next attempt of a failed job, and between tries of a call that failed.

The backoff of a job is stored on its row as a short text, so that a deploy does not change what was promised to a job that
waits already.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from math import isfinite
from typing import Annotated, Literal, final

import msgspec

from ..errors import InvalidCall
from .clock import Duration, micros_of


@final
class Backoff(msgspec.Struct, frozen=True):
    """Delay before the next attempt: initial · multiplier^(n−1), at most `maximum`, plus 0…jitter.

    >>> Backoff.exponential(1.0).delay(3, draw=0.0) / 1_000_000
    4.0
    """

    kind: Literal["exponential", "fixed"]
    initial: int
    multiplier: float
    maximum: int
    jitter: int

    @classmethod
    def exponential(
        cls, initial: Duration, *, multiplier: float = 2.0, maximum: Duration = 3600.0, jitter: Duration = 0.0
    ) -> Backoff:
        if not isinstance(multiplier, int | float) or not isfinite(multiplier) or multiplier < 1:
            raise InvalidCall(f"Backoff multiplier must be a number of at least 1, it is {multiplier!r}")
        return cls(
            "exponential",
            micros_of(initial, "Backoff initial"),
            float(multiplier),
            micros_of(maximum, "Backoff maximum"),
            micros_of(jitter, "Backoff jitter"),
        )

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: Duration = 0.0) -> Backoff:
        micros = micros_of(delay, "Backoff delay")
        return cls("fixed", micros, 1.0, micros, micros_of(jitter, "Backoff jitter"))

    def delay(self, failures: int, *, draw: float) -> int:
        """Microseconds to wait after the n-th failure; `draw` in 0…1 places the jitter."""
        try:
            grown = self.initial * self.multiplier ** (failures - 1)
        except OverflowError:
            grown = float(self.maximum)
        return round(min(grown, self.maximum) + draw * self.jitter)

    def text(self) -> str:
        return json.dumps([self.kind, self.initial, self.multiplier, self.maximum, self.jitter], separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Backoff:
        return Backoff(*_backoff.decode(text))


MOST = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_backoff = msgspec.json.Decoder(tuple[Literal["exponential", "fixed"], MOST, float, MOST, MOST])
DEFAULT_BACKOFF = Backoff.exponential(1.0)


class RetryDelay:
    """Delays between tries of a call that failed: each is twice as long as the last one, up to `longest`. A random part of
    up to half of it is left out, so that many callers do not come back at the same moment."""

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._next = first
        self._longest = longest

    def next(self) -> float:
        """Seconds to wait before the next try."""
        delay = self._next
        self._next = min(2 * delay, self._longest)
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The call succeeded: begin again with the first delay."""
        self._next = self._first
