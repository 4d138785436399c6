"""Limits how long a worker waits for an answer of its store.

A connection can die silently: a firewall forgets it, a host loses power. So every call has a time limit. A store that is
only slow must not run into the limit again and again: the limit is several times what answers took lately, and doubles
with each missing answer.
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
    """No answer arrived in time. It is unknown whether the store carried out the call."""


class AnswerTimeout:
    """The limit for one kind of call. It starts with `shortest`, which is infinite where giving up repairs nothing."""

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

    async def answer(self, call: Awaitable[T], at_most: float = float("inf")) -> T:
        """Wait for an answer. Raises AnswerTimedOut when it takes too long."""
        within = min(self.seconds, at_most)
        if within == float("inf"):
            return await call
        began = monotonic()
        limit = self._begin_limit(began + within)
        try:
            answer = await call
        except BaseException as error:
            if limit.passed and limit.is_cause_of(error):
                self._missed = min(self._missed + 1, 8)
                raise AnswerTimedOut(f"no answer within {within:.1f} s") from error
            raise
        else:
            if limit.passed:  # it arrived at the last moment
                limit.task.uncancel()
        finally:
            self._limits.discard(limit)
        self._missed = 0
        self._took += 0.3 * (monotonic() - began - self._took)
        return answer

    # -- the time limit ------------------------------------------------------------------------------
    # One timer serves many calls, since nearly all are answered long before. asyncio.timeout would make one for each.
    def _begin_limit(self, until: float) -> _Limit:
        task = asyncio.current_task()
        assert task is not None
        limit = _Limit(task, until)
        self._limits.add(limit)
        if self._timer is None or self._timer_at > until:
            self._set_timer(until)
        return limit

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_later(max(when - monotonic(), 0), self._expire_limits)

    def _expire_limits(self) -> None:
        self._timer = None
        now = monotonic()
        for limit in [limit for limit in self._limits if limit.until <= now]:
            self._limits.discard(limit)
            limit.passed = True
            limit.task.cancel()
        if self._limits:
            self._set_timer(min(limit.until for limit in self._limits))


class _Limit:
    """How long a task waits for one answer."""

    __slots__ = ("_cancelling", "passed", "task", "until")

    def __init__(self, task: asyncio.Task[Any], until: float) -> None:
        self.task = task
        self.until = until
        self.passed = False
        self._cancelling = task.cancelling()

    def is_cause_of(self, error: BaseException) -> bool:
        """Whether this limit alone caused the error. Call it once, after the limit has passed."""
        others = self.task.uncancel() > self._cancelling
        return isinstance(error, TimeoutError) or (isinstance(error, asyncio.CancelledError) and not others)
