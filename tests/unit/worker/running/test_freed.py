"""A job that was cancelled while it ran gives up its unique key and its place under limits as soon as its code has stopped,
and not when its lease ends: also if the code stopped before it was told."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Backoff, Context, HoldLost, JobCancelled, Limit, Perdure, Unique
from tests.support.addresses import address

WITHIN = 10.0  # seconds; the lease is far longer


@pytest.fixture
def app(store, tmp_path):
    return Perdure(address(store, tmp_path), lease=120)


class Job:
    """A task of which one job at a time may be active, and one may run."""

    def __init__(self, app: Perdure) -> None:
        self.app = app
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

        @app.task(unique=Unique("only", scope="active"), limit=Limit(max_running=1), backoff=Backoff.fixed(0.01))
        async def work(ctx: Context, how: str) -> str:
            if how != "again":
                self.began.set()
                await self.go_on.wait()
            if how == "transaction":
                await ctx.transaction()
            if how == "failure":
                raise LookupError("no such thing")
            return how

        self.task = work

    async def runs_again(self) -> None:
        """The key is free, and so is the place."""
        async with asyncio.timeout(WITHIN):
            while (handle := await self.task.enqueue("again")).duplicate:
                await asyncio.sleep(0.02)
            return await handle.result()

    async def claims_again(self) -> None:
        async with asyncio.timeout(WITHIN):
            while (await self.task.enqueue("again")).duplicate:
                await asyncio.sleep(0.02)
            items = []
            while not items:
                async with self.app.claim(tasks=["work"]) as items:
                    for item in items:
                        await item.succeed("again")


@pytest.mark.parametrize("how", ["success", "failure", "transaction"])
async def test_code_that_ends_before_it_hears_of_the_cancel(app, store, how):
    if store == "valkey" and how == "transaction":
        pytest.skip("it has no transactions")
    job = Job(app)
    async with app, app.worker(poll=0.05):
        first = await job.task.enqueue(how)
        await asyncio.wait_for(job.began.wait(), 10)
        await app.jobs.cancel(first.id)
        job.go_on.set()
        with pytest.raises(JobCancelled):
            await first.result(timeout=10)
        assert await job.runs_again() == "again"


async def test_code_that_is_told_to_stop(app):
    job = Job(app)
    async with app, app.worker(poll=0.05):
        first = await job.task.enqueue("success")
        await asyncio.wait_for(job.began.wait(), 10)
        await app.jobs.cancel(first.id)
        with pytest.raises(JobCancelled):
            await first.result(timeout=10)
        assert await job.runs_again() == "again"


async def test_an_item_whose_report_is_refused(app):
    job = Job(app)
    async with app:
        first = await job.task.enqueue("success")
        async with app.claim(tasks=["work"]) as (item,):
            await app.jobs.cancel(first.id)
            with pytest.raises(HoldLost):
                await item.succeed("done")
            await job.claims_again()


async def test_an_item_without_a_report(app):
    job = Job(app)
    async with app:
        first = await job.task.enqueue("success")
        async with app.claim(tasks=["work"]):
            await app.jobs.cancel(first.id)
        await job.claims_again()
