"""One way of living for every background loop of a worker.

A service is a coroutine function that runs until its `stop` event is set. One that raises is started again after
a pause that grows to a second: trouble with the store must not end a worker, nor make it busy. Nor must it fill the log:
what is said already is said again only after a while.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from math import floor
from time import monotonic

from ..errors import StoreError
from ..observe import log
from .claiming.answer_timeout import AnswerTimedOut

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
LASTED = 5.0  # seconds after which a round that fails has worked before: the trouble is a new one
SAID_EVERY = 60.0  # seconds before the same trouble is told again
LET_GO = 10.0  # seconds that a cancelled round gets to end
PULSE = 1.0  # seconds
_OFFSET = random.random()  # processes of one machine need not wake up together


class Service:
    """A named loop with a life: start, stop."""

    def __init__(self, name: str, body: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self.name = name
        self.stopping = asyncio.Event()
        self._body = body
        self._task: asyncio.Task[None] | None = None
        self._anew = asyncio.Event()
        self._pause = SHORTEST_PAUSE
        self._said: dict[str, float] = {}  # troubles, and when each was told
        self.refused_at = 0.0  # when the store last answered with an error

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=f"perdure {self.name}")

    async def stop(self, timeout: float = 5.0) -> None:
        """Ask the loop to end; cancel it when it does not."""
        self.stopping.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=timeout)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=LET_GO)

    @property
    def lives(self) -> bool:
        """The loop runs, or pauses between two tries."""
        return self._task is not None and not self._task.done()

    def start_anew(self) -> None:
        """Give up what the loop is doing, and begin again."""
        self._anew.set()

    async def _live(self) -> None:
        while not self.stopping.is_set():
            began = monotonic()
            try:
                if await self._one_round():
                    return
            except Exception as error:
                if not isinstance(error, AnswerTimedOut):
                    self.refused_at = monotonic()
                self._tell(error)
            if monotonic() - began > LASTED:
                self.worked()
            await sleep(self.stopping, self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _one_round(self) -> bool:
        """Run the body. False when it was given up to begin again."""
        self._anew.clear()
        body = asyncio.ensure_future(self._body(self.stopping))
        anew = asyncio.ensure_future(self._anew.wait())
        try:
            await asyncio.wait([body, anew], return_when=asyncio.FIRST_COMPLETED)
        finally:
            anew.cancel()
            if not body.done():
                body.cancel()
                await asyncio.wait([body], timeout=LET_GO)
                if not body.done():
                    log.loop_did_not_end(self.name, LET_GO)
        if body.done() and not body.cancelled():
            body.result()
            return True
        return False

    def worked(self) -> None:
        """The store answered it: the next trouble is a new one."""
        self._pause = SHORTEST_PAUSE

    def _tell(self, error: Exception) -> None:
        now, trouble = monotonic(), f"{type(error).__name__} {error}"
        self._said = {each: at for each, at in self._said.items() if now - at < SAID_EVERY}
        if trouble in self._said:
            return
        self._said[trouble] = now
        if isinstance(error, StoreError):
            log.store_out_of_reach(self.name, error)
        else:
            log.service_failed(self.name, error)


def to_pulse(seconds: float) -> float:
    """At most so many seconds, until an instant at which others wake up, too: an idle worker pays for being woken up, so
    who is in no hurry goes with them. Less than a pulse is left as it is."""
    if seconds < PULSE:
        return seconds
    now = monotonic()
    return (floor((now + seconds) / PULSE - _OFFSET) + _OFFSET) * PULSE - now


async def sleep(stopping: asyncio.Event, seconds: float) -> bool:
    """Sleep, but not past a stop. True when it is time to stop."""
    if seconds > 0 and not stopping.is_set():
        try:
            async with asyncio.timeout(seconds):
                await stopping.wait()
        except TimeoutError:
            pass
    return stopping.is_set()


async def rest(stopping: asyncio.Event, seconds: float) -> bool:
    """Sleep for about as long, until others wake up, too."""
    return await sleep(stopping, to_pulse(seconds))


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
