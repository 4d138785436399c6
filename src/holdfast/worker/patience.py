"""How long a worker waits for an answer of its store.

A connection can be dead without a word: a firewall has forgotten it, the host has lost its power. Nobody answers, and
nobody says that nobody will. So every question has a limit. A store that is only slow must not be given up over and over:
the limit is several times what answers took lately, and doubles with each that did not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import TypeVar

from ..errors import StoreError

T = TypeVar("T")

LONGEST = 40.0
TIMES = 4  # what an answer may take, in recent ones


class Unanswered(StoreError):
    """Nobody answered in time. Whether the question was heard is not known."""


class Patience:
    """The limit for one kind of question. `shortest` is where it begins; infinite where giving up mends nothing."""

    def __init__(self, shortest: float, longest: float = LONGEST) -> None:
        self._shortest = shortest
        self._longest = longest
        self._took = 0.0
        self._missed = 0

    @property
    def seconds(self) -> float:
        """How long the next answer may take."""
        usual = max(self._shortest, TIMES * self._took)
        return max(self._shortest, min(usual * (1 << self._missed), self._longest))

    async def answer(self, question: Awaitable[T], at_most: float = float("inf")) -> T:
        """The answer; Unanswered when it takes too long."""
        within = min(self.seconds, at_most)
        if within == float("inf"):
            return await question
        began = monotonic()
        try:
            async with asyncio.timeout(within) as limit:
                answer = await question
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._missed = min(self._missed + 1, 8)
            raise Unanswered(f"no answer within {within:.1f} s") from error
        self._missed = 0
        self._took += 0.3 * (monotonic() - began - self._took)
        return answer
