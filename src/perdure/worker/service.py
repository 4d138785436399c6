"""Runs the background loops of a worker.

A service runs a coroutine function until its stop event is set. If the function raises, the service starts it again after a
pause that grows to a second: trouble with the store must neither end a worker nor keep it busy. The same error is logged at
most once a minute.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from math import floor
from time import monotonic

from ..core.clock import boottime
from ..core.growing_pause import GrowingPause
from ..core.log_limit import LogLimit
from ..errors import StoreError
from ..observe import log
from ..upkeep.store_contact import StoreContact
from .claiming.answer_timeout import AnswerTimedOut

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two tries
LASTED = 5.0  # seconds after which a round that fails has worked before: the trouble is a new one
CANCEL_WITHIN = 10.0  # seconds that a cancelled round gets to end
PULSE = 1.0  # seconds
_OFFSET = random.random()  # processes of one machine need not wake up together


class Service:
    """A named loop that can be started and stopped. With `contact`, its pause becomes short again once the store has
    answered."""

    def __init__(
        self,
        name: str,
        body: Callable[[asyncio.Event], Awaitable[None]],
        contact: StoreContact | None = None,
    ) -> None:
        self.name = name
        self.stopping = asyncio.Event()
        self._body = body
        self._contact = contact
        self._task: asyncio.Task[None] | None = None
        self._restart = asyncio.Event()
        self._pause = retry_pause()
        self._logged = LogLimit()
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
        await asyncio.wait([self._task], timeout=CANCEL_WITHIN)

    @property
    def lives(self) -> bool:
        """The loop runs, or pauses between two tries."""
        return self._task is not None and not self._task.done()

    def restart(self) -> None:
        """Give up what the loop is doing, and begin again."""
        self._restart.set()

    async def _live(self) -> None:
        failed_at = 0.0
        while not self.stopping.is_set():
            began = monotonic()
            try:
                if await self._one_round():
                    return
            except Exception as error:
                if not isinstance(error, AnswerTimedOut):
                    self.refused_at = monotonic()
                self._log(error)
            if monotonic() - began > LASTED or (self._contact is not None and self._contact.reached_at > failed_at):
                self._pause.reset()  # it worked before: this trouble is a new one
            failed_at = boottime()
            await sleep(self.stopping, self._pause.next())

    async def _one_round(self) -> bool:
        """Run the body. False when it was given up to begin again."""
        self._restart.clear()
        body = asyncio.ensure_future(self._body(self.stopping))
        restart = asyncio.ensure_future(self._restart.wait())
        try:
            await asyncio.wait([body, restart], return_when=asyncio.FIRST_COMPLETED)
        finally:
            restart.cancel()
            if not body.done():
                body.cancel()
                await asyncio.wait([body], timeout=CANCEL_WITHIN)
                if not body.done():
                    log.loop_did_not_end(self.name, CANCEL_WITHIN)
        if body.done() and not body.cancelled():
            body.result()
            return True
        return False

    def _log(self, error: Exception) -> None:
        if not self._logged.is_new(f"{type(error).__name__} {error}"):
            return
        if isinstance(error, StoreError):
            log.store_out_of_reach(self.name, error)
        else:
            log.service_failed(self.name, error)


def retry_pause() -> GrowingPause:
    """The pauses of everything in a worker that tries again until the store answers."""
    return GrowingPause(SHORTEST_PAUSE, LONGEST_PAUSE)


def to_pulse(seconds: float) -> float:
    """Shorten a sleep so that it ends when the other loops of this process wake up, too. In an idle worker a wake-up
    costs more than the work that follows. A sleep shorter than a pulse stays as it is."""
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
    """Sleep for about this long, until the other loops wake up, too. True when it is time to stop."""
    return await sleep(stopping, to_pulse(seconds))


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
