"""What a handler can say and do on its way."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Backoff, Context, HoldLost, InvalidCall, Item, JobDead, State

SOON = Backoff.fixed(0.01)
WITH_SQL = pytest.mark.parametrize("store", ["memory", "sqlite"])  # in the words of SQLite


async def test_progress_and_log_are_seen_while_it_runs(app):
    told, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def steps(ctx: Context) -> None:
        await ctx.progress({"phase": "embedding", "percent": 40})
        for n in range(3):
            await ctx.log(f"line {n}\nforged")
        told.set()
        await go_on.wait()

    async with app, app.worker():
        job = await steps.enqueue()
        await told.wait()
        seen = await job.refresh()
        assert seen.state is State.RUNNING
        assert seen.progress == {"phase": "embedding", "percent": 40}
        assert await app.jobs.log(job.id) == tuple(f"line {n}\\nforged" for n in range(3))
        go_on.set()
        await job.result(timeout=10)


async def test_a_handler_knows_when_it_began(app):
    seen = []

    @app.task(max_attempts=2, backoff=SOON)
    async def handler(ctx: Context) -> None:
        seen.append(ctx.job.started_at)
        if ctx.job.attempt == 1:
            raise ValueError

    @app.batch_task(size=1)
    async def together(items: list[Item[int]]) -> None:
        seen.append(items[0].job.started_at)

    async with app, app.worker():
        job = await handler.enqueue()
        await job.result(timeout=10)
        ended = await job.refresh()
        assert ended.started_at == seen[1] > seen[0] >= ended.created_at
        batched = await together.enqueue(1)
        await batched.result(timeout=10)
        assert (await batched.refresh()).started_at == seen[2] is not None


async def test_watch_shows_progress_and_ends_with_the_job(app):
    @app.task
    async def count(ctx: Context) -> int:
        for n in range(3):
            await ctx.progress(n)
            await asyncio.sleep(0.15)
        return 3

    async with app, app.worker():
        seen = [job async for job in (await count.enqueue()).watch(timeout=20)]
    assert seen[-1].state is State.SUCCEEDED
    assert {job.progress for job in seen} >= {1, 2}


async def test_def_handlers_have_the_blocking_form(app):
    @app.task
    def steps(ctx: Context) -> str:
        ctx.sync.progress(50)
        ctx.sync.log("half")
        with pytest.raises(RuntimeError, match=r"ctx\.sync\.progress"):
            ctx.progress(1)
        return Context.current().fence

    async with app, app.worker():
        job = await steps.enqueue()
        assert await job.result(timeout=10) == f"{job.id}:1"
        assert (await job.refresh()).progress == 50
        assert await app.jobs.log(job.id) == ("half",)


async def test_words_of_a_lost_hold_are_refused(app):
    refused = []

    @app.task
    async def late(ctx: Context) -> None:
        await app.jobs.cancel(ctx.job.id)
        for say in (ctx.progress, ctx.log):
            try:
                await say("x")
            except HoldLost as lost:
                refused.append(lost.reason)

    async with app, app.worker():
        job = await late.enqueue()
        while len(refused) < 2:
            await asyncio.sleep(0.01)
        assert (await job.refresh()).progress is None


@WITH_SQL
async def test_a_transaction_commits_with_the_completion(app):
    @app.task
    async def charge(ctx: Context, amount: int) -> str:
        tx = await ctx.transaction()
        await tx.execute("create table if not exists paid (id text, amount integer)")
        await tx.execute("insert into paid values (?, ?)", (ctx.fence, amount))
        await noted.using(connection=tx).enqueue()
        return "paid"

    @app.task
    async def noted() -> str:
        return "noted"

    @app.task
    async def total(ctx: Context) -> int:
        tx = await ctx.transaction()
        return (await tx.execute("select sum(amount) from paid"))[0][0]

    async with app, app.worker():
        assert await (await charge.enqueue(5)).result(timeout=10) == "paid"
        assert await (await charge.enqueue(6)).result(timeout=10) == "paid"
        assert await (await total.enqueue()).result(timeout=10) == 11
        while await app.jobs.count(task="noted", state=State.SUCCEEDED) < 2:
            await asyncio.sleep(0.01)


@WITH_SQL
async def test_an_error_undoes_the_transaction_and_the_jobs_in_it(app):
    @app.task(max_attempts=2, backoff=SOON)
    async def broken(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute("create table if not exists effects (n integer)")
        await tx.execute("insert into effects values (1)")
        await child.using(connection=tx).enqueue()
        raise ValueError("after the effects")

    @app.task
    async def child() -> None: ...

    @app.task
    async def tables(ctx: Context) -> int:
        tx = await ctx.transaction()
        return (await tx.execute("select count(*) from sqlite_master where name = 'effects'"))[0][0]

    async with app, app.worker():
        with pytest.raises(JobDead):
            await (await broken.enqueue()).result(timeout=10)
        assert await (await tables.enqueue()).result(timeout=10) == 0
        assert await app.jobs.count(task="child") == 0


@WITH_SQL
async def test_a_cancelled_jobs_transaction_is_refused(app):
    tries = []

    @app.task
    async def racing(ctx: Context) -> None:
        tries.append(1)
        if app.url.startswith("memory"):
            tx = await ctx.transaction()
            await tx.execute("create table if not exists raced (n integer)")
            await app.jobs.cancel(ctx.job.id)
        else:
            await app.jobs.cancel(ctx.job.id)
            tx = await ctx.transaction()
            await tx.execute("create table if not exists raced (n integer)")

    @app.task
    async def tables(ctx: Context) -> int:
        tx = await ctx.transaction()
        return (await tx.execute("select count(*) from sqlite_master where name = 'raced'"))[0][0]

    async with app, app.worker():
        job = await racing.enqueue()
        while not tries or (await job.refresh()).state is not State.CANCELLED:
            await asyncio.sleep(0.01)
        assert await (await tables.enqueue()).result(timeout=10) == 0


async def test_verbs_that_would_wait_for_themselves_raise_at_once(tmp_path):
    from perdure import Perdure

    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(max_attempts=1)
    async def inside(ctx: Context, how: str) -> None:
        await ctx.transaction()
        if how == "progress":
            await ctx.progress(1)
        else:
            await other.enqueue()

    @app.task
    async def other() -> None: ...

    async with app, app.worker():
        for how in ("progress", "enqueue"):
            with pytest.raises(JobDead) as dead:
                await (await inside.enqueue(how)).result(timeout=10)
            assert dead.value.job.errors[0].kind == InvalidCall.__name__
            assert "would wait for itself" in dead.value.job.errors[0].message


async def test_run_here_and_now_needs_no_store(app):
    @app.task
    async def double(ctx: Context, n: int) -> int:
        await ctx.progress("on the way")
        assert ctx.job.progress == "on the way"
        return n * 2

    assert await double.run(21) == 42
