"""Runs pieces of work in a limited number of tasks on the event loop.

A task per job would cost several times as much. A slot is one task that runs one piece after the other. It yields to the
event loop every so many pieces, so that handlers which never wait do not block the rest of the program.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

YIELD_EVERY = 64  # pieces
REPLACE_AFTER = 0.05  # seconds before another slot takes the place of a cancelled one
W = TypeVar("W")

Run = Callable[[W, "asyncio.Task[None]"], Coroutine[Any, Any, None] | None]


class SlotTasks(Generic[W]):
    """At most `limit` slots. `run(piece, task)` runs a piece, and returns a coroutine if the rest of it must be awaited.
    `failed` is called if that raises, `drained` when a slot finds nothing more to run."""

    def __init__(
        self, limit: int, run: Run[W], failed: Callable[[W, Exception], None], drained: Callable[[], None]
    ) -> None:
        self._limit = limit
        self._run = run
        self._failed = failed
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._queue: deque[W] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """Pieces that have not started."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        return self._closed

    def pieces(self) -> Iterator[W]:
        """The pieces that have not started."""
        return iter(self._queue)

    def feed(self, pieces: Iterable[W]) -> None:
        self._queue.extend(pieces)
        self._wake(1)

    def take_back(self) -> list[W]:
        """Remove the pieces that have not started."""
        pieces = list(self._queue)
        self._queue.clear()
        return pieces

    def wake_others(self) -> None:
        """The handler of a slot begins to wait: let two others look at the queue. One slot runs any number of handlers that
        never wait, so more of them are needed only now."""
        if self._queue:
            self._wake(2)

    async def close(self, before_wait: Coroutine[Any, Any, None]) -> None:
        """Cancel all slots, and wait for them after `before_wait`."""
        self._closed = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await before_wait
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self, count: int) -> None:
        for _ in range(0 if self._closed else min(count, len(self._queue))):
            self._idle = [waiting for waiting in self._idle if not waiting.done()]
            if self._idle:
                self._idle.pop().set_result(None)
            elif len(self._tasks) < self._limit:
                self._tasks.append(self._loop.create_task(self._run_slot(), name="perdure slot"))

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self._closed:
                await self._run_queue(task)
                await self._wait_for_work()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.remove(task)

    async def _run_queue(self, task: asyncio.Task[None]) -> None:
        """Run pieces until none waits.

        A cancellation that reaches this function was meant for no piece: the slots are closed, or the event loop ends and
        waits for this task, or a handler cancelled itself. If the loop goes on, another slot takes over in a moment."""
        done, queue, run = 0, self._queue, self._run
        while queue and not self._closed:
            try:
                piece = queue.popleft()
                try:
                    rest = run(piece, task)
                    if rest is not None:
                        await rest
                except Exception as broke:  # no handler's error comes this far; a bug of ours must not cost the slot
                    self._failed(piece, broke)
                done += 1
                if done % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self._loop.call_later(REPLACE_AFTER, self._wake, 1)
                raise
        self._drained()

    async def _wait_for_work(self) -> None:
        waiting = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if not waiting.done() or waiting.cancelled():
                self._idle = [other for other in self._idle if other is not waiting]
