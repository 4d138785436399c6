"""Bounded queues under load, on every store: several enqueuers at once, with a worker and without. The bound holds."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from perdure import Context, Perdure, QueueFull, State
from tests.support.addresses import address
from tests.support.waiting import stays

STORES = ["sqlite", "postgres", "valkey", "mongo"]
BOUND = 10
ENQUEUERS = 4


@pytest.fixture(params=STORES)
def store(request):
    return request.param


class Crowd:
    """Apps with connections of their own on one store, and what their one task has run."""

    def __init__(self, url: str) -> None:
        self.apps = [Perdure(url) for _ in range(ENQUEUERS)]
        self.ran: list[int] = []
        self.tasks = [self._task(app) for app in self.apps]
        self.app = self.apps[0]
        self.deepest = 0

    def _task(self, app: Perdure):
        @app.task(queue="narrow")
        async def work(n: int) -> None:
            self.ran.append(n)

        return work

    def of(self, number: int):
        return self.tasks[number]

    async def at_once(self, enqueues, *, working: bool):
        """Let all enqueuers loose, look at the depth all the time; with `working`, until all that was stored has run. The
        worker begins when the first jobs were seen: it may be quicker than whoever looks."""
        async with AsyncExitStack() as stack:
            looking = asyncio.create_task(self._look())
            enqueuing = asyncio.gather(*(enqueues(n) for n in range(ENQUEUERS)))
            try:
                if working:
                    async with asyncio.timeout(30):
                        while not self.deepest:
                            await asyncio.sleep(0.005)
                    await stack.enter_async_context(self.app.worker(poll=0.1, concurrency=2))
                answers = await asyncio.wait_for(enqueuing, 60)
                if working:
                    async with asyncio.timeout(30):
                        while await self.app.jobs.count(queue="narrow", state=[State.READY, State.RUNNING]):
                            await asyncio.sleep(0.02)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
        return answers

    async def _look(self) -> None:
        while True:
            for queue in await self.app.queues.list():
                self.deepest = max(self.deepest, queue.depth)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def crowd_on(store: str, folder, **settings):
    crowd = Crowd(address(store, folder))
    async with AsyncExitStack() as stack:
        for app in crowd.apps:
            await stack.enter_async_context(app)
        await crowd.app.queues.configure("narrow", max_depth=BOUND, **settings)
        yield crowd


async def test_reject(store, tmp_path):
    """Nobody works: exactly as many are stored as there is room for, whoever comes first; a list whole or not at all."""
    async with crowd_on(store, tmp_path, on_full="reject") as crowd:

        async def enqueues(number: int) -> int:
            stored = 0
            for turn in range(6):
                try:
                    if turn % 2:
                        stored += len(await crowd.app.enqueue([crowd.of(number).call(turn) for _ in range(3)]))
                    else:
                        await crowd.of(number).enqueue(turn)
                        stored += 1
                except QueueFull:
                    pass
            return stored

        stored = sum(await crowd.at_once(enqueues, working=False))
        assert stored == await crowd.app.jobs.count(queue="narrow") == BOUND
        assert crowd.deepest <= BOUND


async def test_wait(store, tmp_path):
    """Everything is stored in the end, never more than the bound at once, singles and lists alike."""
    async with crowd_on(store, tmp_path, on_full="wait") as crowd:

        async def enqueues(number: int) -> None:
            task = crowd.of(number)
            for turn in range(0, 18, 6):
                await asyncio.gather(*(task.enqueue(100 * number + turn + each) for each in range(3)))
                await crowd.app.enqueue([task.call(100 * number + turn + each) for each in range(3, 6)])

        await crowd.at_once(enqueues, working=True)
        assert sorted(crowd.ran) == [100 * number + turn for number in range(ENQUEUERS) for turn in range(18)]
        assert 0 < crowd.deepest <= BOUND


async def test_drop_looks_at_the_priority(store, tmp_path):
    """Below `drop_below` a job may be dropped and says so; the others wait, and none of them is lost."""
    async with crowd_on(store, tmp_path, on_full="drop", drop_below=5) as crowd:
        await crowd.app.queues.pause("narrow")
        handles = await crowd.app.enqueue([crowd.of(0).using(priority=9).call(-n) for n in range(1, BOUND + 1)])
        low = await crowd.of(0).using(priority=4).enqueue(0)
        assert (low.dropped, any(handle.dropped for handle in handles)) == (True, False)
        waiting = asyncio.create_task(crowd.of(1).using(priority=5).enqueue(-99))
        await stays(lambda: not waiting.done(), 0.1)
        await crowd.app.queues.resume("narrow")

        async def enqueues(number: int) -> list[int]:
            """The numbers of its jobs that were dropped."""
            dropped = []
            for turn in range(12):
                task = crowd.of(number).using(priority=9 if turn % 4 == 0 else 1)
                if (await task.enqueue(100 * number + turn)).dropped:
                    dropped.append(100 * number + turn)
            return dropped

        dropped = [number for each in await crowd.at_once(enqueues, working=True) for number in each]
        assert not (await waiting).dropped
        offered = {100 * number + turn for number in range(ENQUEUERS) for turn in range(12)}
        assert sorted(crowd.ran) == sorted([*(offered - set(dropped)), *range(-BOUND, 0), -99])
        assert all(number % 100 % 4 for number in dropped), "none of a high priority"
        assert crowd.deepest <= BOUND


async def test_nobody_waits_inside_a_transaction(store, tmp_path):
    """A full queue is told at once there, whatever its policy: waiting would hold the locks of the caller's rows."""
    if store == "valkey":
        pytest.skip("this store has no transactions for handlers")
    async with crowd_on(store, tmp_path, on_full="wait") as crowd:
        await crowd.app.enqueue([crowd.of(0).call(n) for n in range(BOUND)])
        await crowd.app.queues.pause("narrow")
        told = []

        @crowd.app.task
        async def parent(ctx: Context) -> str:
            tx = await ctx.transaction()
            try:
                await crowd.app.enqueue(crowd.of(0).call(99), connection=tx)
            except QueueFull as full:
                told.append(str(full))
            return "through"

        async with crowd.app.worker(poll=0.1):
            assert await (await parent.enqueue()).result(timeout=20) == "through"
        assert "narrow" in told[0]
        assert await crowd.app.jobs.count(queue="narrow") == BOUND
