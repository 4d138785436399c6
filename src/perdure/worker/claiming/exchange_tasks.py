"""Who goes to the store for the pump: tasks that wait for an errand, carry it, and run the jobs they bring home.

A task for each exchange, and a slot to be woken for what it brings, would take two more turns of the event loop, and those
of an idle worker are slow. So a messenger that comes home takes the place of an idle slot until nothing waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ...core.lifecycle import Change
from ...storage.contract import Claim
from ..running.attempt import Attempt

ExchangeJob = tuple[list[tuple[Attempt, Change]], Claim | None]  # the ends to tell, and what to ask for
Task = asyncio.Task[None]


class ExchangeTasks:
    """`carry` does an errand, `back` hears that it is over and of the error it ended with, `undone` gets one that nobody
    has begun, `serve` is what a messenger does when it is home."""

    def __init__(
        self,
        most: int,
        carry: Callable[[ExchangeJob], Awaitable[None]],
        back: Callable[[BaseException | None], None],
        undone: Callable[[ExchangeJob], None],
        serve: Callable[[Task], Awaitable[None]],
    ) -> None:
        self._most = most
        self._carry = carry
        self._back = back
        self._undone = undone
        self._serve = serve
        self._away: dict[Task, ExchangeJob | None] = {}  # with an errand that is not begun yet
        self._idle: dict[Task, asyncio.Future[ExchangeJob]] = {}
        self._dismissed = False

    @property
    def away(self) -> int:
        """How many are on their way."""
        return len(self._away)

    def send(self, errand: ExchangeJob) -> None:
        self._dismissed = False
        task, waiting = self._ready()
        self._away[task] = errand
        waiting.set_result(errand)

    def _ready(self) -> tuple[Task, asyncio.Future[ExchangeJob]]:
        """One that waits for an errand."""
        while self._idle:
            task, waiting = self._idle.popitem()
            if not waiting.done():  # it may just have been stopped
                return task, waiting
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        task = loop.create_task(self._live(waiting), name="perdure messenger")
        task.add_done_callback(self._gone)
        return task, waiting

    def dismiss(self) -> list[Task]:
        """Stop all but those who run jobs, which are the slots' to stop. Gives whom to wait for."""
        self._dismissed = True
        stopped = [*self._away, *self._idle]
        for task in stopped:
            task.cancel()
        return stopped

    async def _live(self, waiting: asyncio.Future[ExchangeJob]) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                errand = await waiting
            finally:
                self._idle.pop(task, None)
            self._away[task] = None
            await self._carry(errand)
            del self._away[task]
            self._back(None)
            await self._serve(task)
            if self._dismissed or len(self._idle) >= self._most:
                return
            self._idle[task] = waiting = asyncio.get_running_loop().create_future()

    def _gone(self, task: Task) -> None:
        """One has ended: its errand failed, or it was stopped."""
        if task not in self._away:
            return
        errand = self._away.pop(task)
        if errand is not None:
            self._undone(errand)
        self._back(None if task.cancelled() else task.exception())
