"""An app that is closed while a worker of its own is at work."""

import asyncio

import pytest

from perdure import Perdure, State
from tests.support.addresses import OF_EACH_KIND, address


@pytest.fixture(params=["memory", "sqlite", *OF_EACH_KIND])
def app(request, tmp_path):
    return Perdure(address(request.param, tmp_path))


async def test_its_worker_goes_on(app):
    @app.task
    async def work(number: int) -> int:
        return number

    async with app.worker() as worker:
        store = worker._control.session._store
        async with app:
            assert await (await work.enqueue(1)).result(timeout=10) == 1
        assert await (await work.enqueue(2)).result(timeout=10) == 2
        await app.close()
        assert worker._control.session._store is store
    await app.close()
    async with app, app.worker():
        assert await (await work.enqueue(3)).result(timeout=10) == 3


async def test_its_claims_are_settled(app):
    @app.task
    async def work(number: int) -> int:
        return number

    async with app:
        job, other = await app.enqueue([work.call(1), work.call(2)])
        async with app.claim(tasks=[work], limit=2, max_wait=5) as items:
            await app.close()
            await items[0].succeed(1)
        assert (await job.refresh()).state is State.SUCCEEDED
        assert (await other.refresh()).state is State.READY


async def test_the_last_to_leave_closes_the_store(app, monkeypatch):
    closed = asyncio.Event()

    @app.task
    async def work() -> None: ...

    first, second = app.worker(), app.worker()
    await first.start()
    await second.start()
    store = await app._runtime.storage()
    close = store.close

    async def noted():
        await close()
        closed.set()

    monkeypatch.setattr(store, "close", noted)
    await app.close()
    await first.stop()
    assert not closed.is_set()
    await second.stop()
    assert closed.is_set()
