"""How code is told to stop: timeouts, cancellation, loss of the hold, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from perdure import (
    Backoff,
    Context,
    JobCancelled,
    JobDead,
    Loss,
    NoLoop,
    Perdure,
    State,
    Unique,
    WorkerPool,
    WorkerSpec,
)

SOON = Backoff.fixed(0.01)


async def test_a_coroutine_is_cancelled_at_its_timeout(app, machine):
    reasons = []

    @app.task(timeout=0.1, max_attempts=1)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            reasons.append(ctx.lost.reason)

    async with app, app.worker(concurrency=1):
        began = time.monotonic()
        with pytest.raises(JobDead) as dead:
            await (await slow.enqueue()).result(timeout=60)
        assert time.monotonic() - began < machine.seconds(3)
    assert reasons == [Loss.TIMEOUT]
    assert dead.value.job.errors[0].kind == "TimeoutError"


async def test_swallowing_the_cancellation_does_not_help(app):
    @app.task(timeout=0.1, max_attempts=1)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            pass
        return "done anyway"

    @app.task
    async def next_one() -> str:
        await asyncio.sleep(0.01)
        return "unharmed"

    async with app, app.worker(concurrency=1):
        first, second = await app.enqueue([stubborn.call(), next_one.call()])
        with pytest.raises(JobDead):
            await first.result(timeout=10)
        assert await second.result(timeout=10) == "unharmed"


async def test_a_thread_is_given_up_on_time_and_its_slot_is_free_again(app, machine):
    release = threading.Event()
    seen = []

    @app.task(timeout=0.2, max_attempts=1)
    def stuck(ctx: Context) -> None:
        release.wait(60)
        seen.append(ctx.lost.reason)

    @app.task
    def quick() -> str:
        return "quick"

    async with app, app.worker(concurrency=1):
        first = await stuck.enqueue()
        began = time.monotonic()
        with pytest.raises(JobDead):
            await first.result(timeout=60)
        assert time.monotonic() - began < machine.seconds(3)
        assert await (await quick.enqueue()).result(timeout=10) == "quick"
        release.set()
    await asyncio.to_thread(_until, lambda: seen == [Loss.TIMEOUT])


def _until(done) -> None:
    deadline = time.monotonic() + 10
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done()


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_cancel_reaches_running_code_and_frees_the_key_when_it_stops(app, kind):
    started, reasons = threading.Event(), []

    async def work_async(ctx: Context) -> None:
        started.set()
        try:
            await ctx.lost.wait()
        finally:
            reasons.append(ctx.lost.reason)

    def work(ctx: Context) -> None:
        started.set()
        while not ctx.lost.is_set():
            time.sleep(0.01)
        reasons.append(ctx.lost.reason)

    only = Unique("only", scope="active")
    task = app.task(name="work", lease=1.0, unique=only)(work_async if kind == "async" else work)
    async with app, app.worker():
        job = await task.enqueue()
        await asyncio.to_thread(started.wait, 10)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)
        while (again := await task.enqueue()).duplicate:
            assert again.id == job.id
            await asyncio.sleep(0.01)
        assert reasons == [Loss.CANCELLED]
        assert (await job.refresh()).state is State.CANCELLED
        await again.cancel()


async def test_long_jobs_keep_their_lease(app):
    calls = []

    @app.task(lease=0.6)
    async def long() -> str:
        calls.append(1)
        await asyncio.sleep(2)
        return "done"

    async with app, app.worker(), app.worker(name="rival"):
        assert await (await long.enqueue()).result(timeout=20) == "done"
    assert calls == [1]


async def test_shutdown_lets_jobs_finish_within_the_grace(app):
    started = asyncio.Event()

    @app.task
    async def finishing() -> str:
        started.set()
        await asyncio.sleep(0.3)
        return "finished"

    async with app:
        async with app.worker(grace=10):
            job = await finishing.enqueue()
            await started.wait()
        assert (await job.refresh()).state is State.SUCCEEDED


async def test_shutdown_hands_the_rest_back_free_of_charge(app):
    started, reasons = asyncio.Event(), []

    @app.task
    async def endless(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.lost.reason)

    async with app:
        async with app.worker(concurrency=2, grace=0.1):
            handles = await app.enqueue([endless.call() for _ in range(5)])
            await started.wait()
        states = [await handle.refresh() for handle in handles]
        assert [job.state for job in states] == [State.READY] * 5
        assert [job.failures for job in states] == [0] * 5
        assert set(reasons) == {Loss.SHUTDOWN}
        assert await app.workers.list() == ()


async def test_shutdown_hands_back_what_does_not_stop(app, monkeypatch):
    """The thread runs on until its process ends; its job must not wait for the lease, nor pay for a loss."""
    monkeypatch.setattr("perdure.worker.session.CANCEL_WITHIN", 0.1)
    started, released = threading.Event(), threading.Event()

    @app.task
    def deaf() -> None:
        started.set()
        released.wait(60)

    async with app:
        async with app.worker(grace=0):
            handle = await deaf.enqueue()
            await asyncio.to_thread(started.wait, 20)
        job = await handle.refresh()
        released.set()
    assert (job.state, job.failures, job.losses, job.errors) == (State.READY, 0, 0, ())


async def test_deleting_a_running_job_tells_its_handler(app):
    started, reasons = asyncio.Event(), []

    @app.task(lease=0.9)
    async def vanishing(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.lost.reason)

    async with app, app.worker():
        job = await vanishing.enqueue()
        await started.wait()
        assert await app.jobs.delete(job.id) == 1
        while not reasons:
            await asyncio.sleep(0.01)
    assert reasons == [Loss.NOT_FOUND]


async def test_never_more_at_once_than_the_concurrency(app):
    at_once, peak = 0, 0

    @app.task
    async def busy() -> None:
        nonlocal at_once, peak
        at_once += 1
        peak = max(peak, at_once)
        await asyncio.sleep(0.002)
        at_once -= 1

    async with app, app.worker(concurrency=7):
        handles = await app.enqueue([busy.call() for _ in range(200)])
        for handle in handles:
            await handle.result(timeout=20)
    assert peak == 7


async def test_a_cancellation_is_heard_long_before_the_lease_is_renewed(app):
    started, heard = asyncio.Event(), asyncio.Event()

    @app.task(lease=3600)
    async def patient(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            assert ctx.lost.reason is Loss.CANCELLED
            heard.set()

    async with app, app.worker():
        job = await patient.enqueue()
        await started.wait()
        await job.cancel()
        async with asyncio.timeout(10):
            await heard.wait()


@pytest.mark.parametrize("verb", ["run", "start", "stop"])
@pytest.mark.parametrize("kind", ["worker", "pool"])
def test_outside_a_loop_it_says_so_at_once(kind, verb):
    app = Perdure("memory://")
    worker = app.worker() if kind == "worker" else WorkerPool(app, [WorkerSpec()])
    with pytest.raises(
        NoLoop, match=rf"worker\.{verb}\(\) needs a running event loop; await it inside `async def main"
    ):
        getattr(worker, verb)()
