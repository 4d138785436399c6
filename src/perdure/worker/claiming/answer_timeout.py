"""How long a worker waits for an answer of its store.

A connection can be dead without a word: a firewall has forgotten it, the host has lost its power. Nobody answers, and
nobody says that nobody will. So every question has a limit. A store that is only slow must not be given up over and over:
the limit is several times what answers took lately, and doubles with each that did not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import Any, TypeVar

from ...errors import StoreError

T = TypeVar("T")

LONGEST = 40.0
TIMES = 4  # what an answer may take, in recent ones


class AnswerTimedOut(StoreError, ConnectionError):
    """Nobody answered in time. Whether the question was heard is not known."""


class AnswerTimeout:
    """The limit for one kind of question. `shortest` is where it begins; infinite where giving up mends nothing."""

    def __init__(self, shortest: float, longest: float = LONGEST) -> None:
        self._shortest = shortest
        self._longest = longest
        self._took = 0.0
        self._missed = 0
        self._limits: set[_Limit] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

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
        limit = self._limited(began + within)
        try:
            answer = await question
        except BaseException as error:
            if limit.passed and limit.caused(error):
                self._missed = min(self._missed + 1, 8)
                raise AnswerTimedOut(f"no answer within {within:.1f} s") from error
            raise
        else:
            if limit.passed:  # it came in the last moment
                limit.task.uncancel()
        finally:
            self._limits.discard(limit)
        self._missed = 0
        self._took += 0.3 * (monotonic() - began - self._took)
        return answer

    # -- the time limit ------------------------------------------------------------------------------
    # One timer for many questions: nearly all are answered long before. What asyncio has for it makes one for each.
    def _limited(self, until: float) -> _Limit:
        task = asyncio.current_task()
        assert task is not None
        limit = _Limit(task, until)
        self._limits.add(limit)
        if self._timer is None or self._timer_at > until:
            self._look_at(until)
        return limit

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_later(max(when - monotonic(), 0), self._look)

    def _look(self) -> None:
        self._timer = None
        now = monotonic()
        for limit in [limit for limit in self._limits if limit.until <= now]:
            self._limits.discard(limit)
            limit.passed = True
            limit.task.cancel()
        if self._limits:
            self._look_at(min(limit.until for limit in self._limits))


class _Limit:
    """How long a task waits for one answer."""

    __slots__ = ("_cancelling", "passed", "task", "until")

    def __init__(self, task: asyncio.Task[Any], until: float) -> None:
        self.task = task
        self.until = until
        self.passed = False
        self._cancelling = task.cancelling()

    def caused(self, error: BaseException) -> bool:
        """Whether an error came of it, and of nothing else. To be asked once, when it has passed."""
        others = self.task.uncancel() > self._cancelling
        return isinstance(error, TimeoutError) or (isinstance(error, asyncio.CancelledError) and not others)
