"""Several workers in one process: who takes what, and one that fails does not silence the others."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from perdure import ANY, Context, InvalidCall, Perdure, StoreError, WorkerPool, WorkerSpec


async def test_each_worker_takes_its_own_by_task_queue_and_routing_key(app):
    @app.task
    async def where(ctx: Context, n: int) -> str:
        return ctx.worker

    @app.task
    async def check(ctx: Context) -> str:
        return ctx.worker

    specs = [
        WorkerSpec(name="vector", tasks=[where], routing_key="vector"),
        WorkerSpec(name="plain", tasks=["where"], routing_key=None),
        WorkerSpec(name="checks", tasks=["check"], routing_key=ANY, queues=["bulk"], poll=0.2),
    ]
    async with app, WorkerPool(app, specs) as pool:
        jobs = {
            "vector": await where.using(routing_key="vector").enqueue(1),
            "plain": await where.enqueue(2),
            "checks": await check.using(routing_key="x", queue="bulk").enqueue(),
        }
        nobodys = [await where.using(routing_key="keyword").enqueue(3), await check.enqueue()]
        assert {name: await job.result(timeout=10) for name, job in jobs.items()} == {name: name for name in jobs}
        assert [worker.id for worker in pool.workers] == ["vector", "plain", "checks"]
        async with app.worker(name="any"):
            assert [await job.result(timeout=10) for job in nobodys] == ["any", "any"]


async def test_one_that_cannot_start_does_not_silence_the_others(caplog):
    app = Perdure("memory://")

    @app.task
    async def work() -> str:
        return "done"

    async with app, WorkerPool(app, [WorkerSpec(tasks=["nobody"], name="wrong"), WorkerSpec(tasks=["work"])]):
        assert await (await work.enqueue()).result(timeout=10) == "done"
        assert "worker wrong did not start, the others of its pool go on without it" in caplog.text
        assert "no task named 'nobody'" in caplog.text
    with pytest.raises(InvalidCall, match="nobody"):
        await WorkerPool(app, [WorkerSpec(tasks=["nobody"])]).run()
    with pytest.raises(ExceptionGroup, match="no worker of the pool could start"):
        await WorkerPool(app, [WorkerSpec(tasks=["nobody"]), WorkerSpec(tasks=["neither"])]).run()


async def test_a_store_out_of_reach_is_tried_again(monkeypatch):
    monkeypatch.setattr("perdure.worker.open_store.FIRST_PAUSE", 0.01)
    app = Perdure("memory://")
    calls = []

    @app.task
    async def work() -> str:
        return "done"

    storage = app._runtime.storage

    async def unsteady():
        calls.append(1)
        if len(calls) < 3:
            raise StoreError("not yet")
        return await storage()

    app._runtime.storage = unsteady
    async with WorkerPool(app, [WorkerSpec()]):
        async with asyncio.timeout(10):
            while len(calls) < 3:
                await asyncio.sleep(0.01)
        assert await (await work.enqueue()).result(timeout=10) == "done"


async def test_it_runs_until_sigterm_and_lets_handlers_finish():
    app = Perdure("memory://")
    begun = asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "finished"

    running = asyncio.create_task(WorkerPool(app, [WorkerSpec(), WorkerSpec(queues=["other"])]).run())
    job = await slow.enqueue()
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 20)
    assert await job.result(timeout=30) == "finished"
    assert await app.workers.list() == ()
    await app.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": "embed"}, r"write \['embed'\]"),
        ({"queues": "mail"}, r"write \['mail'\]"),
        ({"tasks": []}, "leave it out"),
        ({"queues": []}, "leave it out"),
        ({"queues": [5]}, "queues must be a text"),
        ({"tasks": [5]}, "tasks must be a text"),
        ({"routing_key": 5}, "routing_key must be a text"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": ""}, "name must not be empty"),
    ],
)
def test_what_is_no_worker(options, words):
    """A worker that would claim nothing, or never what was meant, does not come to be."""
    with pytest.raises(InvalidCall, match=words):
        Perdure("memory://").worker(**options)


def test_what_is_no_pool():
    app = Perdure("memory://")
    with pytest.raises(InvalidCall, match="at least one"):
        WorkerPool(app, [])
    for no_list in (5, None, {"tasks": ["a"]}, ["a"]):
        with pytest.raises(InvalidCall, match="takes a list"):
            WorkerPool(app, no_list)
    with pytest.raises(InvalidCall, match="works for an app"):
        WorkerPool("memory://", [WorkerSpec()])
    with pytest.raises(InvalidCall, match="named 'a'"):
        WorkerPool(app, [WorkerSpec(name="a"), WorkerSpec(name="a")])
    with pytest.raises(InvalidCall, match="no option"):
        WorkerPool(app, [{"colour": "red"}])


@pytest.mark.parametrize(
    "options",
    [
        dict(queues="mail"),
        dict(queues=5),
        dict(queues=[5]),
        dict(queues=[""]),
        dict(queues=["a\n"]),
        dict(queues=[]),
        dict(tasks="embed"),
        dict(tasks=5),
        dict(tasks=[5]),
        dict(tasks=[]),
        dict(routing_key=5),
        dict(routing_key=""),
        dict(concurrency=0),
        dict(concurrency="5"),
        dict(batch_size=5),
        dict(name=5),
        dict(name=""),
        dict(name="a\nb"),
        dict(name="x" * 201),
        dict(poll=0),
        dict(grace=-1),
        dict(unknown="maybe"),
    ],
    ids=str,
)
def test_what_a_worker_cannot_be_told(options):
    with pytest.raises(InvalidCall):
        Perdure("memory://").worker(**options)
