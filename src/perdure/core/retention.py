"""How long ended jobs are kept, and how long they stay hidden afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, final

import msgspec

from ..errors import InvalidCall
from .backoff import MOST
from .clock import SECOND, Duration, micros_of

HIDDEN_FOR = 600 * SECOND  # an ended job stays hidden for so long, so that a repeated enqueue or report finds it


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
        """Whether jobs are kept for so short a time that upkeep must look for them often."""
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


_retention = msgspec.json.Decoder(Literal["delete"] | dict[Literal["last", "age"], MOST | None])


BRIEF = 3_600_000_000  # an hour, in microseconds


DEFAULT_RETENTION = Retention.keep(age=7 * 86_400)


DEFAULT_DEAD_RETENTION = Retention.keep()
