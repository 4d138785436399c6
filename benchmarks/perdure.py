"""Perdure by its public door, on any store."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from .contender import SLOTS, Mode
from .loop import Done, LoopContender, handler
from .probe import Probe

NAME = "noop"


class PerdureContender(LoopContender):
    key = "perdure"
    title = "Perdure"
    module = "perdure.app"
    distribution = "perdure"
    ours = True
    modes = frozenset({"loop", "threads", "io"})
    settings = f"concurrency {SLOTS}, everything else as it comes"
    long_runs = True

    @abstractmethod
    def url(self) -> str: ...

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        """An app with the handler under one name, so that a process that enqueues needs no more than one that runs."""
        from perdure import Perdure

        async with Perdure(self.url()) as app:
            if not for_work:
                self._task = app.task(name=NAME, limit=self._limit())(handler(Probe(0), "loop"))
            await app.jobs.count()
            yield app

    def _limit(self) -> Any:
        from perdure import Limit

        return None if self.limit is None else Limit(max_running=self.limit)

    async def put(self, queue: Any, text: str) -> None:
        await self._task.enqueue(text)

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        await queue.enqueue([self._task.call(text) for text in texts])

    async def count_waiting(self, queue: Any) -> int:
        return await self._count(queue, "ready")

    async def count_completed(self, queue: Any) -> int | None:
        return await self._count(queue, "succeeded")

    async def all_stored(self, queue: Any, probe: Probe) -> bool:
        """None runs any more, where this worker was to run all. To count those that have ended would keep them from being
        stored: with a rollback journal nobody can commit while somebody reads."""
        if type(probe) is not Probe:
            return await super().all_stored(queue, probe)
        return await self._count(queue, "running") == 0

    async def _count(self, app: Any, state: str) -> int:
        from perdure import State

        return int(await app.jobs.count(state=State(state)))

    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        def blocking(text: str) -> None:
            probe(text)

        tune_collector()
        queue.task(name=NAME, limit=self._limit())(blocking if mode == "threads" else handler(probe, mode))
        async with queue.worker(concurrency=SLOTS):
            probe.ready()
            await done()


def tune_collector() -> None:
    """Tune the garbage collector as `perdure worker` does.

    The function is no part of the public API, and `./dev bench compare` measures checkouts that keep it in different
    modules. So it is found by its definition."""
    package = Path(str(import_module("perdure").__file__)).parent
    for file in sorted((package / "worker").rglob("*.py")):
        if "\ndef tune_collector(" in file.read_text():
            name = ".".join(("perdure", *file.relative_to(package).with_suffix("").parts))
            import_module(name).tune_collector()
            return
    raise LookupError(f"no module of {package / 'worker'} defines tune_collector")
