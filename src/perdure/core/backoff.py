"""How long a failed job waits, and how long an ended one is kept. Both are resolved when the job is enqueued
and travel on its row as short texts, so that a deploy never changes what was promised to a queued job."""

from __future__ import annotations

import json
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
