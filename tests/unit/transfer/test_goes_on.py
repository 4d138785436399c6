"""What was begun at one store is ended at another: an app whose URL has changed goes on where it was."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Limit, Perdure, State, group
from perdure.testing import drain
from perdure.transfer.transfer import move
from tests.support.addresses import ON_SERVERS

from .conftest import silent


@asynccontextmanager
async def shop(url):
    app = Perdure(url, durability="relaxed")
    app.ran = []

    @app.task(name="part")
    async def part(number: int) -> int:
        app.ran.append(number)
        return number

    @app.task(name="total", queue="later", limit=Limit(max_running=1, rate="9/min"))
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    app.part, app.total = part, total
    yield app
    await app.close()


@pytest.mark.parametrize("name", [*ON_SERVERS, "sqlite"])
async def test_a_flow_that_is_half_done(house, name):
    here, there = f"sqlite:///{house.folder}/here.db", house.url(name)
    async with shop(here) as app:
        await app.queues.pause("later")
        parts = [app.part.call(number) for number in range(2)]
        parts += [app.part.using(queue="later").call(number) for number in range(2, 4)]
        job = await app.enqueue(group(*parts).then(app.total))
        app.schedule("0 3 * * *", app.part.call(9), name="nightly")
        await drain(app)
        assert sorted(app.ran) == [0, 1]
        before = await app.schedules.list()
    async with house.open(here) as source, house.open(there) as target:
        house.clock.set(datetime.now(UTC) + timedelta(minutes=2))  # workers are forgotten
        await move(source, target, silent)
    async with shop(there) as app:
        assert await app.schedules.list() == before
        assert (await app.jobs.get(job.id)).state is State.BLOCKED
        await app.queues.resume("later")
        await drain(app)
        assert sorted(app.ran) == [2, 3]
        assert (await app.jobs.get(job.id)).result == 6
