"""What a worker tells of itself while it is at work: how many handlers run, and of tasks that are declared too late."""

import asyncio

import pytest

from perdure import Perdure
from perdure.worker.health import heartbeat


@pytest.mark.parametrize(("chosen", "told"), [(None, 1), (["early"], 0)])
async def test_a_task_that_comes_late_is_named_once(caplog, monkeypatch, chosen, told):
    monkeypatch.setattr(heartbeat, "BEAT", 0.01)
    app = Perdure("memory://")

    @app.task
    async def early() -> None: ...

    async with app.worker(tasks=chosen):

        @app.task
        async def late() -> None: ...

        beats = 0
        store = await app._runtime.storage()
        beat = store.heartbeat

        async def counted(row):
            nonlocal beats
            beats += 1
            await beat(row)

        monkeypatch.setattr(store, "heartbeat", counted)
        async with asyncio.timeout(15):
            while beats < 3:
                await asyncio.sleep(0)
    assert sum("does not run late: declared after it started" in text for text in caplog.messages) == told


async def test_how_many_handlers_run_is_told_soon(monkeypatch):
    monkeypatch.setattr(heartbeat, "CHECK_EVERY", 0.01)
    app = Perdure("memory://")
    go_on = asyncio.Event()

    @app.task
    async def slow() -> None:
        await go_on.wait()

    async with app.worker(), asyncio.timeout(15):
        jobs = await app.enqueue([slow.call() for _ in range(3)])
        while (await app.workers.list())[0].running != 3:
            await asyncio.sleep(0.01)
        go_on.set()
        for job in jobs:
            await job.result()
        while (await app.workers.list())[0].running != 0:
            await asyncio.sleep(0.01)
