"""At most so many of a task at once in one worker, and no job held that cannot run."""

from __future__ import annotations

import asyncio
import threading

import pytest

from perdure import Context, InvalidCall, Perdure, State
from tests.support.every_store import ON_STORES
from tests.support.waiting import eventually, stays


@ON_STORES
async def test_at_most_so_many_at_once_and_the_others_go_on(app, kind):
    now, most, release = [], [], threading.Event()

    def note(n: int) -> None:
        now.append(n)
        most.append(len(now))

    async def slow_async(n: int) -> None:
        note(n)
        while not release.is_set():
            await asyncio.sleep(0.005)
        now.remove(n)

    def slow(n: int) -> None:
        note(n)
        release.wait(10)
        now.remove(n)

    task = app.task(name="slow", concurrency=2)(slow_async if kind == "async" else slow)

    @app.task
    async def quick(n: int) -> int:
        return n

    async with app, app.worker(concurrency=10, poll=0.2):
        slow_ones = await app.enqueue([task.using(priority=5).call(n) for n in range(8)])
        quick_ones = await app.enqueue([quick.call(n) for n in range(20)])
        for handle in quick_ones:  # not starved by what stands in front of them
            await handle.result(timeout=10)
        assert await app.jobs.count(task="slow", state=State.RUNNING) == 2  # and none is held that cannot run
        assert await app.jobs.count(task="slow", state=State.READY) == 6
        release.set()
        for handle in slow_ones:
            await handle.result(timeout=10)
    assert max(most) == 2


async def test_the_next_begins_when_one_is_over_not_at_the_next_poll(app):
    @app.task(concurrency=1)
    async def one(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async with app, app.worker(concurrency=5, poll=30):
        async with asyncio.timeout(15):
            for handle in await app.enqueue([one.call(n) for n in range(10)]):
                await handle.result(timeout=15)


async def test_several_limits_and_priorities_side_by_side():
    app = Perdure("memory://")
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    order = []

    async def work(ctx: Context) -> None:
        task = ctx.job.task
        order.append((task, ctx.job.priority))
        running[task] = running.get(task, 0) + 1
        most[task] = max(most.get(task, 0), running[task])
        await asyncio.sleep(0.003)
        running[task] -= 1

    limits = {"a": 1, "b": 2, "c": 3, "d": 4, "e": None}
    tasks = [app.task(name=name, concurrency=limit)(work) for name, limit in limits.items()]
    async with app:
        handles = await app.enqueue([task.using(priority=n % 3).call() for n in range(12) for task in tasks])
        async with app.worker(concurrency=8, poll=30):
            for handle in handles:
                await handle.result(timeout=20)
    assert all(most[name] <= limit for name, limit in limits.items() if limit is not None)
    assert most["a"] == 1
    assert [priority for task, priority in order if task == "a"] == sorted(
        (priority for task, priority in order if task == "a"), reverse=True
    )


async def test_a_worker_whose_tasks_are_all_at_their_limit_is_not_busy():
    app = Perdure("memory://")
    release = asyncio.Event()

    @app.task(concurrency=1)
    async def stuck() -> None:
        await release.wait()

    async with app:
        handles = await app.enqueue([stuck.call() for _ in range(3)])
        async with app.worker(concurrency=5, poll=0.02):
            store, asked = await app._runtime.storage(), []
            exchange = store.exchange

            async def counted(changes, claim=None, started=()):
                asked.append(claim)
                return await exchange(changes, claim, started)

            await eventually(lambda: app.jobs.count(state=State.RUNNING))
            store.exchange = counted
            await stays(lambda: len(asked) < 5 and not any(asked), 0.3)
            release.set()
            for handle in handles:
                await handle.result(timeout=10)


def test_what_is_no_concurrency():
    app = Perdure("memory://")
    for wrong in (0, -1, True, "2"):
        with pytest.raises(InvalidCall, match="concurrency"):
            app.task(name="t", concurrency=wrong)
