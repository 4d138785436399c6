"""Several workers in one process, each with its own tasks, routing key and claim loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from ..core.verb import needs_loop
from ..errors import InvalidCall
from ..observe import log
from .lifetime import Lifetime
from .open_store import retry_until_opened
from .worker import App, Worker, WorkerSpec, control_of


class WorkerPool(Lifetime):
    """Workers that run side by side and do not know of each other.

    `await WorkerPool(app, [WorkerSpec(tasks=["embed"], routing_key="vector"), WorkerSpec(queues=["mail"])]).run()`

    One that cannot start is told in the log and does not keep the others from their work: a store that is out of reach is
    tried again, a mistake in what was asked for is not. When none can start, that is raised.
    """

    def __init__(self, app: App, specs: Sequence[WorkerSpec], /) -> None:
        if not isinstance(specs, Sequence) or not all(isinstance(spec, Mapping) for spec in specs):
            raise InvalidCall("a WorkerPool takes a list: WorkerPool(app, [WorkerSpec(…), …])")
        if not specs:
            raise InvalidCall("a WorkerPool needs at least one WorkerSpec")
        self._workers = [Worker(app, **spec) for spec in specs]
        double = [name for name, times in Counter(worker.id for worker in self._workers).items() if times > 1]
        if double:
            raise InvalidCall(f"two workers of a pool are named {double[0]!r}; a name= is for one")
        self._starting: list[asyncio.Task[None]] = []
        self._failures: list[Exception] = []
        self.id = "pool"
        super().__init__()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers, in the order of their specs."""
        return tuple(self._workers)

    @needs_loop
    async def start(self) -> None:
        """Start every worker that can be started."""
        if self._starting:
            return
        self._stopped.clear()
        self._failures.clear()
        tried = [asyncio.Event() for _ in self._workers]
        self._starting = [
            asyncio.create_task(self._start(worker, event), name=f"perdure start of {worker.id}")
            for worker, event in zip(self._workers, tried, strict=True)
        ]
        try:
            for event in tried:
                await event.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise
        if len(self._failures) == len(self._workers):
            self._starting = []
            if len(self._failures) == 1:
                raise self._failures[0]
            raise ExceptionGroup("no worker of the pool could start", self._failures)

    async def _start(self, worker: Worker, tried: asyncio.Event) -> None:
        try:
            await retry_until_opened(worker.start, worker.id, tried.set)
        except Exception as error:
            log.worker_not_started(worker.id, error)
            self._failures.append(error)
        finally:
            tried.set()

    async def _stop(self, hurry: asyncio.Event) -> None:
        starting, self._starting = self._starting, []
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        ends = await asyncio.gather(
            *(control_of(worker).stop(hurry) for worker in self._workers), return_exceptions=True
        )
        for worker, end in zip(self._workers, ends, strict=True):
            if isinstance(end, Exception):
                log.service_failed(f"stop of worker {worker.id}", end)
        self._stopped.set()
