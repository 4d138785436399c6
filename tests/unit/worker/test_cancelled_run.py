"""`worker.run()` and `pool.run()` that are cancelled: the work stops with them, in good order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pytest

from perdure import Context, Loss, Perdure, State, WorkerPool
from tests.support.waiting import eventually, stays


def runs(app: Perdure, kind: str, **options):
    return WorkerPool(app, [{"tasks": ["job"], **options}]) if kind == "pool" else app.worker(**options)


async def cancelled(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", ["worker", "pool"])
async def test_it_claims_nothing_more_and_says_goodbye(app, kind):
    @app.task
    async def job() -> int:
        return 1

    async with app:
        running = asyncio.create_task(runs(app, kind).run())
        assert await (await job.enqueue()).result(timeout=10) == 1
        await cancelled(running)
        assert await app.workers.list() == ()
        late = await job.enqueue()
        await stays(lambda: app.jobs.count(state=State.READY), 0.1)
        assert (await late.refresh()).state is State.READY


@pytest.mark.parametrize("kind", ["worker", "pool"])
async def test_what_runs_may_end_first(app, kind):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def job() -> str:
        begun.set()
        await go_on.wait()
        return "whole"

    async with app:
        running = asyncio.create_task(runs(app, kind).run())
        handle = await job.enqueue()
        await begun.wait()
        running.cancel()
        await stays(lambda: not running.done(), 0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await handle.refresh()).result == "whole"


@pytest.mark.parametrize("kind", ["worker", "pool"])
async def test_a_second_cancellation_hurries(app, kind, caplog):
    caplog.set_level("INFO", "perdure")
    begun, told = asyncio.Event(), []

    @app.task
    async def job(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.append(ctx.lost.reason)

    async with app, asyncio.timeout(20):
        running = asyncio.create_task(runs(app, kind).run())
        handle = await job.enqueue()
        await begun.wait()
        running.cancel()
        await eventually(lambda: "is stopping" in caplog.text)
        await cancelled(running)
        assert told == [Loss.SHUTDOWN]
        back = await handle.refresh()
        assert (back.state, back.failures, back.losses) == (State.READY, 0, 0)


async def test_a_time_limit_ends_it(app):
    @app.task
    async def job() -> None: ...

    async with app:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await app.worker().run()
        assert await app.workers.list() == ()


async def test_one_whose_start_is_cancelled_takes_its_sign_of_life_along(app):
    @app.task
    async def job() -> None: ...

    async with app:
        store = await app._runtime.storage()
        beat, beaten = store.heartbeat, asyncio.Event()

        async def slow_beat(row) -> None:
            await beat(row)
            beaten.set()
            await asyncio.Event().wait()

        store.heartbeat = slow_beat
        starting = asyncio.create_task(app.worker().start())
        await beaten.wait()
        assert len(await app.workers.list()) == 1
        await cancelled(starting)
        assert await app.workers.list() == ()


async def test_a_pool_whose_start_is_cancelled_leaves_nothing_behind(app):
    @app.task
    async def job() -> None: ...

    async with app:
        before = asyncio.all_tasks()
        starting = asyncio.create_task(WorkerPool(app, [{}, {}]).start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancelled(starting)
        left = [task.get_name() for task in asyncio.all_tasks() - before if "start" in task.get_name()]
        assert left == []
        assert await app.workers.list() == ()


PROGRAM = """
    import asyncio
    from perdure import Perdure

    app = Perdure("memory://")

    @app.task
    async def job(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        worker = app.worker()
        {begin}
        await (await job.enqueue(0)).result(timeout=10)
        handles = [await job.enqueue(seconds) for seconds in {others}]
        while handles and (await handles[-1].refresh()).started_at is None:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    print("ended")
"""


@pytest.mark.parametrize("begin", ["await worker.start()", "running = asyncio.create_task(worker.run())"])
@pytest.mark.parametrize("others", ["[]", "[30, 30]"])
def test_a_program_that_forgets_its_worker_ends(begin, others):
    """The loop cancels what is left: also slots, whose work goes on after a job is told to stop."""
    program = textwrap.dedent(PROGRAM).format(begin=begin, others=others)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr
