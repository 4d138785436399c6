"""The exchanges of the claim loop: no report gets lost, and no more handlers run than there are slots."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Perdure, State
from perdure.worker.claiming.claim_loop import ClaimLoop


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_handlers_at_once_than_slots(concurrency):
    app = Perdure("memory://")
    now = most = 0

    @app.task
    async def work(seconds: float) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(seconds)
        now -= 1

    async with app, app.worker(concurrency=concurrency) as worker:
        handles = []
        for number in range(40):  # single ones to an idle worker, then many to a busy one
            handles.append(await work.enqueue(0.001 * (number % 3)))
            if number < 10:
                await handles[-1].result(timeout=10)
        for handle in handles:
            await handle.result(timeout=10)
        assert len(worker._control.session.slots._on_event_loop._tasks) <= concurrency
    assert most == concurrency


async def test_a_running_job_lives_through_a_new_start_of_the_claim_loop():
    app = Perdure("memory://")
    lost: list[object] = []
    begun = asyncio.Event()

    @app.task
    async def quick(n: int) -> int:
        return n

    @app.task
    async def slow(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            lost.append(ctx.lost.reason)

    async with app, app.worker(concurrency=2) as worker:
        running = worker._control.session
        for n in range(3):
            assert await (await quick.enqueue(n)).result(timeout=10) == n
        job = await slow.enqueue()
        await asyncio.wait_for(begun.wait(), 10)
        running.claiming.restart()
        for n in range(3):
            assert await (await quick.enqueue(n)).result(timeout=10) == n
        assert (await job.refresh()).state is State.RUNNING
        assert await job.cancel()
        async with asyncio.timeout(10):
            while not lost:
                await asyncio.sleep(0.01)
        assert [str(reason) for reason in lost] == ["cancelled"]
        assert await (await quick.enqueue(7)).result(timeout=10) == 7


async def test_an_exchange_that_is_cancelled_before_it_starts_loses_nothing():
    """The loop that began it is started again before the task of the exchange had its first turn."""
    app = Perdure("memory://")
    released = asyncio.Event()

    @app.task
    async def work(n: int) -> int:
        await released.wait()
        return n

    async with app, app.worker(concurrency=20) as worker:
        running = worker._control.session
        jobs = [await work.enqueue(n) for n in range(10)]
        async with asyncio.timeout(10):
            while running.slots.running < 10:
                await asyncio.sleep(0.005)
        begin = ClaimLoop._begin_exchange

        def begin_and_cancel(loop: ClaimLoop) -> None:
            begin(loop)
            for task in loop._exchanges.values():
                task.cancel()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ClaimLoop, "_begin_exchange", begin_and_cancel)
            released.set()
            await asyncio.sleep(0.05)
        assert sorted([await job.result(timeout=10) for job in jobs]) == list(range(10))


async def test_a_bug_that_a_signal_brings_to_light_does_not_end_the_claim_loop(monkeypatch, caplog):
    """The sender of the signal does not notice it, and the claim loop starts again."""
    app = Perdure("memory://")

    @app.task
    async def work(n: int) -> int:
        return n

    async with app, app.worker(poll=0.2):
        assert await (await work.enqueue(1)).result(timeout=10) == 1
        await asyncio.sleep(0.05)
        with monkeypatch.context() as patched:
            patched.setattr(ClaimLoop, "_next_claim", lambda self: 1 / 0)
            job = await work.enqueue(2)
            await asyncio.sleep(0.05)
        assert await job.result(timeout=10) == 2
    assert "ZeroDivisionError" in caplog.text
