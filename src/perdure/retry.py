"""How long a failed job waits, and how long an ended one is kept. Both are resolved when the job is enqueued
and travel on its row as short texts, so that a deploy never changes what was promised to a queued job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Literal, final

import msgspec

from .clock import SECOND, Duration, micros_of
from .errors import InvalidCall

HIDDEN_FOR = 600 * SECOND  # an ended job that is not kept so long stays, hidden, so that repeated words find it


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


@final
class Retention(msgspec.Struct, frozen=True):
    """How long an ended job is kept: not at all, for ever, the newest N of its task, or for some time.

    >>> Retention.keep(age=86400).age / 1_000_000
    86400.0
    """

    drop: bool = False
    last: int | None = None
    age: int | None = None

    @classmethod
    def delete(cls) -> Retention:
        return cls(drop=True)

    @classmethod
    def keep(cls, *, last: int | None = None, age: Duration | None = None) -> Retention:
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 0):
            raise InvalidCall(f"Retention.keep(last=) must be a whole number of at least 0, it is {last!r}")
        return cls(last=last, age=None if age is None else micros_of(age, "Retention.keep(age=)"))

    @property
    def brief(self) -> bool:
        """What it no longer keeps is looked for often: a reader would miss it soon."""
        return self.last is not None or (self.age is not None and self.age < BRIEF)

    def text(self) -> str:
        if self.drop:
            return '"delete"'
        kept: Mapping[str, int | None] = {"last": self.last, "age": self.age}
        return json.dumps({name: value for name, value in kept.items() if value is not None}, separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Retention:
        told = _retention.decode(text)
        return Retention.delete() if told == "delete" else msgspec.convert(told, Retention)


_MOST = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_backoff = msgspec.json.Decoder(tuple[Literal["exponential", "fixed"], _MOST, float, _MOST, _MOST])
_retention = msgspec.json.Decoder(Literal["delete"] | dict[Literal["last", "age"], _MOST | None])
BRIEF = 3_600_000_000  # an hour, in microseconds
DEFAULT_BACKOFF = Backoff.exponential(1.0)
DEFAULT_RETENTION = Retention.keep(age=7 * 86_400)
DEFAULT_DEAD_RETENTION = Retention.keep()
