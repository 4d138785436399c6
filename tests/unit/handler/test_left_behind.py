"""What a handler leaves behind: a context that is used when the handler is over."""

import asyncio

import pytest

from perdure import Context, HoldLost, Item, Perdure
from tests.support.addresses import OF_EACH_KIND, address

WITH_TRANSACTIONS = ["memory", "sqlite", *(kind for kind in OF_EACH_KIND if kind != "valkey")]


@pytest.fixture(params=WITH_TRANSACTIONS)
def app(request, tmp_path):
    return Perdure(address(request.param, tmp_path))


async def test_no_transaction_is_begun_that_nobody_would_end(app):
    contexts = []

    @app.task
    async def leaves(ctx: Context) -> None:
        contexts.append(ctx)

    async with app, app.worker():
        await (await leaves.enqueue()).result(timeout=10)
        with pytest.raises(HoldLost, match="is over, and its transaction with it"):
            await contexts[0].transaction()
        await (await leaves.enqueue()).result(timeout=10)  # nothing holds the store


async def test_one_that_begins_while_the_handler_ends_is_undone(app, monkeypatch):
    under_way: list[asyncio.Task[object]] = []
    undone = asyncio.Event()
    reached, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def leaves(ctx: Context) -> None:
        under_way.append(asyncio.create_task(ctx.transaction()))
        await reached.wait()

    async with app, app.worker():
        store = await app._runtime.storage()
        begin_for = store.begin_for

        async def slowly(*args):
            begun = await begin_for(*args)
            rollback = begun.rollback

            async def counted():
                await rollback()
                undone.set()

            begun.rollback = counted
            reached.set()
            await go_on.wait()
            return begun

        monkeypatch.setattr(store, "begin_for", slowly)
        job = await leaves.enqueue()
        await reached.wait()
        context_over = asyncio.create_task(_over(under_way))
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(HoldLost):
            await context_over
        assert undone.is_set()
        await job.result(timeout=10)


async def _over(under_way):
    return await under_way[0]


async def test_who_asks_at_the_same_time_gets_the_same_transaction(app):
    @app.task
    async def twice(ctx: Context) -> bool:
        first, second = await asyncio.gather(ctx.transaction(), ctx.transaction())
        return first is second

    async with app, app.worker():
        assert await (await twice.enqueue()).result(timeout=10)


async def test_an_item_that_has_its_outcome_begins_none(app):
    @app.task
    async def work(number: int) -> int:
        return number

    async with app:
        await app.enqueue([work.call(1), work.call(2)])
        async with app.claim(tasks=[work], limit=2, max_wait=5) as items:
            first: Item[object] = items[0]
            await first.succeed(1)
            with pytest.raises(HoldLost):
                await first.transaction()
            tx = await items[1].transaction()  # left open: undone with its item, which is handed back
            assert tx is not None
        with pytest.raises(HoldLost):
            await items[1].transaction()
        async with app.claim(tasks=[work], max_wait=5) as items:
            await items[0].transaction()
            await items[0].succeed(2)
