"""`queues` lists every queue that has had jobs, also when it is empty now."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

from perdure import Perdure
from perdure.cli.root import perdure


async def listed(app) -> dict[str, int]:
    return {queue.name: queue.depth for queue in await app.queues.list()}


async def until_listed(app, names: dict[str, int]) -> None:
    async with asyncio.timeout(30):
        while (found := await listed(app)) != names:
            await asyncio.sleep(0.02)
    assert found == names


async def test_a_queue_that_had_jobs_is_listed_when_it_is_empty(app):
    gate = asyncio.Event()

    @app.task
    async def send() -> str:
        await gate.wait()
        return "sent"

    async with app:
        jobs = [await send.using(queue=name).enqueue() for name in ("mail", "reports")]
        assert await listed(app) == {"mail": 1, "reports": 1}
        async with app.worker():
            await until_listed(app, {"mail": 0, "reports": 0})  # while they run, too
            gate.set()
            assert [await job.result(timeout=30) for job in jobs] == ["sent", "sent"]
        assert await listed(app) == {"mail": 0, "reports": 0}
        await app.queues.pause("mail")
        assert [(queue.name, queue.paused) for queue in await app.queues.list()] == [("mail", True), ("reports", False)]
        async with app.worker():  # a second worker writes the same names
            await send.using(queue="mail").enqueue()
            await until_listed(app, {"mail": 1, "reports": 0})


def test_the_command_lists_it(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def send() -> None: ...

    async def work() -> None:
        async with app, app.worker():
            await (await send.using(queue="mail").enqueue()).result(timeout=30)

    asyncio.run(work())
    for options, words in ([], ["mail", "open", "0"]), (["--json"], ['"name": "mail"', '"settings": {']):
        shown = CliRunner().invoke(perdure, ["queues", "list", *options], env={"PERDURE_URL": app.url})
        assert [word for word in words if word not in shown.output] == [], shown.output


async def test_a_name_is_recorded_even_when_the_worker_stops_at_once(app):
    @app.task
    async def send() -> None: ...

    async with app:
        job = await send.using(queue="mail").enqueue()
        async with app.worker():
            await job.result(timeout=30)
        assert await listed(app) == {"mail": 0}


async def test_a_queue_that_only_app_claim_serves_is_listed(app):
    @app.task
    async def send(n: int) -> None: ...

    async with app:
        for name in ("mail", "reports"):
            await send.using(queue=name).enqueue(1)
        async with app.claim(tasks=["send"], limit=2) as items:
            await until_listed(app, {"mail": 0, "reports": 0})  # while they are held, too
            for item in items:
                await item.succeed()
        assert await listed(app) == {"mail": 0, "reports": 0}
        await send.using(queue="later").enqueue(2)
        async with app.claim(tasks=["send"], limit=1) as (item,):  # another claim of the same program
            await item.succeed()
        assert await listed(app) == {"later": 0, "mail": 0, "reports": 0}


async def test_app_claim_finds_jobs_in_queues_that_nobody_has_named(app):
    """Many of them, beside one that a worker has served, on every store."""

    @app.task
    async def send(n: int) -> int:
        return n

    async with app:
        async with app.worker():
            await (await send.using(queue="served").enqueue(0)).result(timeout=30)
        names = [f"queue-{n}" for n in range(40)]
        await app.enqueue([send.using(queue=name).call(n) for n, name in enumerate(names)])
        assert await listed(app) == {"served": 0, **dict.fromkeys(names, 1)}
        taken = set()
        async with asyncio.timeout(60):
            while len(taken) < 40:
                async with app.claim(tasks=["send"], limit=16, max_wait=0) as items:
                    for item in items:
                        taken.add(item.job.queue)
                        await item.succeed()
        assert taken == set(names)
        assert await listed(app) == {"served": 0, **dict.fromkeys(names, 0)}
