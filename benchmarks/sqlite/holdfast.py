"""Holdfast on SQLite, by its public door."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from benchmarks.contender import BULK, IO_SECONDS, SLOTS, WIDTH, Contender, Durability, Mode, Way, chunks
from benchmarks.payload import payload
from benchmarks.probe import PATIENCE, SETTLE_STEP, Probe

from .journal import uses_wal

if TYPE_CHECKING:
    from holdfast import Holdfast, Task

FILE = "jobs.db"
T = TypeVar("T")


class HoldfastSqlite(Contender):
    key = "holdfast"
    title = "Holdfast"
    module = "holdfast.app"
    distribution = "holdfast"
    scheme: ClassVar[str] = "sqlite"
    ours = True
    ways = frozenset({"single", "bulk", "concurrent"})
    modes = frozenset({"loop", "threads", "io"})
    blocking_handlers = False
    settings = f"concurrency {SLOTS}, everything else as it comes"
    durability = Durability(
        writes="fsync at every commit (synchronous=FULL), journal chosen by SQLite's version",
        power_loss="every accepted job survives",
        worker_killed="its jobs run again when the lease ends",
        keeps="every job with its outcome",
    )

    @classmethod
    def observed(cls, place: Path) -> dict[str, float]:
        return {"wal": float(uses_wal(place / FILE))}

    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        return self._run(lambda app: _enqueue(app, way, texts))

    def fill(self, texts: Sequence[str]) -> None:
        self._run(lambda app: _enqueue_bulk(app, _task(app, Probe(0), "loop"), texts))

    def waiting(self) -> int:
        return self._run(lambda app: _count(app, "ready"))

    def completed(self) -> int | None:
        return self._run(lambda app: _count(app, "succeeded"))

    def work(self, probe: Probe, mode: Mode) -> None:
        self._run(lambda app: _work(app, probe, mode))

    def send(self, gaps: Sequence[float]) -> None:
        self._run(lambda app: _send(app, gaps))

    def _run(self, use: "Callable[[Holdfast], Coroutine[Any, Any, T]]") -> T:
        async def opened() -> T:
            from holdfast import Holdfast

            async with Holdfast(f"{self.scheme}:///{self.place / FILE}") as app:
                return await use(app)

        return asyncio.run(opened())


class HoldfastApsw(HoldfastSqlite):
    key = "holdfast-apsw"
    title = "Holdfast (apsw)"
    scheme = "sqlite+apsw"

    @classmethod
    def version(cls) -> str | None:
        return super().version() if find_spec("apsw") else None


def _task(app: "Holdfast", probe: Probe, mode: Mode) -> "Task[[str], None]":
    """The handler under one name, so that the process that enqueues needs no more than the one that runs."""

    async def loop(text: str) -> None:
        probe(text)

    def threads(text: str) -> None:
        probe(text)

    async def io(text: str) -> None:
        probe.begin()
        await asyncio.sleep(IO_SECONDS)
        probe(text)

    maker = app.task(name="noop")
    match mode:
        case "loop":
            return maker(loop)
        case "threads":
            return maker(threads)
        case "io":
            return maker(io)


async def _enqueue(app: "Holdfast", way: Way, texts: Sequence[str]) -> float:
    task = _task(app, Probe(0), "loop")
    await task.enqueue(payload(0))
    started = time.perf_counter()
    match way:
        case "single":
            for text in texts:
                await task.enqueue(text)
        case "bulk":
            await _enqueue_bulk(app, task, texts)
        case "concurrent":
            for chunk in chunks(texts, WIDTH):
                await asyncio.gather(*[task.enqueue(text) for text in chunk])
    return time.perf_counter() - started


async def _enqueue_bulk(app: "Holdfast", task: "Task[[str], None]", texts: Sequence[str]) -> None:
    for chunk in chunks(texts, BULK):
        await app.enqueue([task.call(text) for text in chunk])


async def _count(app: "Holdfast", state: str) -> int:
    from holdfast import State

    return await app.jobs.count(state=State(state))


async def _work(app: "Holdfast", probe: Probe, mode: Mode) -> None:
    _task(app, probe, mode)
    async with app.worker(concurrency=SLOTS):
        probe.ready()
        await asyncio.to_thread(probe.wait)
        deadline = time.monotonic() + PATIENCE
        while await _count(app, "succeeded") < probe.expected and time.monotonic() < deadline:
            await asyncio.sleep(SETTLE_STEP)
        probe.stored()


async def _send(app: "Holdfast", gaps: Sequence[float]) -> None:
    task = _task(app, Probe(0), "loop")
    for gap in gaps:
        await asyncio.sleep(gap)
        await task.enqueue(payload(time.monotonic_ns()))
