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
