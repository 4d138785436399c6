"""Contenders that live in an event loop: what they share is written once."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from .contender import BULK, IO_SECONDS, WIDTH, Contender, Mode, Way, chunks
from .payload import payload
from .probe import SETTLE_STEP, Probe

T = TypeVar("T")
Handler = Callable[[str], Coroutine[Any, Any, None]]
Done = Callable[[], Coroutine[Any, Any, None]]


class LoopContender(Contender):
    """A queue with a `put` to await. `queue` is whatever `opened` gives: a client, an app."""

    ways = frozenset({"single", "bulk", "concurrent"})
    modes = frozenset({"loop", "io"})
    blocking_handlers = False
    # Whether the queue's own command runs its worker on uvloop: then it does here too.
    uvloop: ClassVar[bool] = False

    @abstractmethod
    def opened(self, *, for_work: bool = False) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def put(self, queue: Any, text: str) -> None: ...

    async def put_many(self, queue: Any, texts: Sequence[str]) -> None:
        for text in texts:
            await self.put(queue, text)

    @abstractmethod
    async def count_waiting(self, queue: Any) -> int: ...

    @abstractmethod
    async def count_completed(self, queue: Any) -> int | None: ...

    @abstractmethod
    async def work_until(self, queue: Any, probe: Probe, mode: Mode, done: Done) -> None:
        """Run a worker, call `probe.ready()`, await `done()`, and stop."""

    def prepare(self) -> None:
        async def nothing(queue: Any) -> None: ...

        self._run(nothing)

    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        return self._run(lambda queue: self._enqueue(queue, way, texts))

    def fill(self, texts: Sequence[str]) -> None:
        self._run(lambda queue: self._put_all(queue, texts))

    def waiting(self) -> int:
        return self._run(self.count_waiting)

    def completed(self) -> int | None:
        return self._run(self.count_completed)

    def work(self, probe: Probe, mode: Mode) -> None:
        async def use(queue: Any) -> None:
            await self.work_until(queue, probe, mode, lambda: self._settled(queue, probe))

        self._run(use, for_work=True)

    def send(self, gaps: Sequence[float]) -> None:
        async def use(queue: Any) -> None:
            self.meter.start()
            for gap in gaps:
                await asyncio.sleep(gap)
                await self.put(queue, payload(time.monotonic_ns()))
            self.meter.stop()

        self._run(use)

    def _run(self, use: Callable[[Any], Coroutine[Any, Any, T]], *, for_work: bool = False) -> T:
        async def main() -> T:
            async with self.opened(for_work=for_work) as queue:
                return await use(queue)

        factory = import_module("uvloop").new_event_loop if for_work and self.uvloop else None
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    async def _enqueue(self, queue: Any, way: Way, texts: Sequence[str]) -> float:
        await self.put(queue, payload(0))
        self.meter.start()
        match way:
            case "single":
                await self._put_each(queue, texts)
            case "bulk":
                await self._put_all(queue, texts)
            case "concurrent":
                await asyncio.gather(*(self._put_each(queue, texts[own::WIDTH]) for own in range(WIDTH)))
        self.meter.stop()
        return self.meter.seconds

    async def _put_each(self, queue: Any, texts: Sequence[str]) -> None:
        for text in texts:
            await self.put(queue, text)

    async def _put_all(self, queue: Any, texts: Sequence[str]) -> None:
        for chunk in chunks(texts, BULK):
            await self.put_many(queue, chunk)

    async def _settled(self, queue: Any, probe: Probe) -> None:
        """Until the last handler was called and every completion is on record (None: nothing is kept)."""
        await asyncio.to_thread(probe.wait)
        deadline = time.monotonic() + probe.patience
        while time.monotonic() < deadline and not await self.all_stored(queue, probe):
            await asyncio.sleep(SETTLE_STEP)
        probe.stored()

    async def all_stored(self, queue: Any, probe: Probe) -> bool:
        """Whether the completion of every handler that was called is on record; counted once more when the clock stands."""
        count = await self.count_completed(queue)
        return count is None or count >= probe.expected


async def beside(worker: Coroutine[Any, Any, None], probe: Probe, done: Done) -> "asyncio.Task[None]":
    """Let a worker run until `done` is over. One that ends before tells why."""
    running, waiting = asyncio.create_task(worker), asyncio.create_task(done())
    await asyncio.sleep(0)
    probe.ready()
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        probe.finished.set()  # a thread waits for it
        running.result()
        raise RuntimeError("the worker ended before its work")
    return running


def handler(probe: Probe, mode: Mode) -> Handler:
    """What a job does: nothing, or ten milliseconds of waiting."""

    async def loop(text: str) -> None:
        probe(text)

    async def io(text: str) -> None:
        probe.begin()
        await asyncio.sleep(IO_SECONDS)
        probe(text)

    return io if mode == "io" else loop
