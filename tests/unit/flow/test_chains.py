"""Chains: jobs that go on with one another, and results that are handed on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from perdure import (
    Backoff,
    Context,
    Continue,
    Dead,
    InvalidCall,
    Item,
    JobCancelled,
    JobDead,
    Perdure,
    QueueFull,
    ResultTimeout,
    State,
    Unique,
    chain,
    group,
)
from tests.support.addresses import address

SOON = Backoff.fixed(0.01)


@pytest.fixture
def tasks(app):
    @app.task
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task
    def double(x: int) -> int:
        return 2 * x

    @app.task
    async def total(numbers: list[int], start: int = 0) -> int:
        return sum(numbers, start)

    @app.task
    async def parents(ctx: Context) -> list[object]:
        return list(ctx.parents)

    return SimpleNamespace(add=add, double=double, total=total, parents=parents)


async def test_results_are_handed_on(app, tasks):
    async with app, app.worker():
        flow = tasks.add.call(1).then(tasks.double).then(tasks.double)
        assert await (await app.enqueue(flow)).result(timeout=20) == 8
        flow = group(tasks.add.call(1), tasks.double.call(3), tasks.add.call(0)).then(tasks.total)
        assert await (await app.enqueue(flow)).result(timeout=20) == 9
        assert await (await app.enqueue(group().then(tasks.total))).result(timeout=20) == 0
        several = await app.enqueue(group(tasks.add.call(1), tasks.add.call(2)))
        assert await several.result(timeout=20) == [2, 3]


async def test_a_chain_keeps_the_order_and_shows_its_parents(app, tasks):
    async with app, app.worker():
        last = await app.enqueue(chain(tasks.add.call(1), tasks.double.call(21), tasks.parents.call()))
        assert await last.result(timeout=20) == [42]
        job = await last.refresh()
        page = await app.jobs.find(chain_id=job.chain_id)
        assert [each.task for each in reversed(page.items)] == ["add", "double", "parents"]
        assert job.after == (page.items[1].id,)


async def test_parents_come_in_declared_order(app, tasks):
    async with app, app.worker():
        first, second = await tasks.add.enqueue(1), await tasks.add.enqueue(2)
        await asyncio.gather(first.result(timeout=20), second.result(timeout=20))
        child = await tasks.parents.using(after=[second, first.id, str(second.id)]).enqueue()
        assert await child.result(timeout=20) == [3, 2]


async def test_continue_goes_on_until_the_end(app):
    @app.task
    async def count(left: int) -> str:
        if left:
            return Continue(count.call(left - 1))
        return "done"

    async with app, app.worker():
        job = await count.enqueue(5)
        assert await job.result(timeout=20) == "done"
        assert (await job.refresh()).result is None
        page = await app.jobs.find(chain_id=job.id)
        assert {each.state for each in page.items} == {State.SUCCEEDED}
        assert len(page.items) == 6


async def test_continue_with_a_flow_and_a_follower_of_the_chain(app, tasks):
    @app.task
    async def begin() -> int:
        return Continue(group(tasks.add.call(1), tasks.add.call(2)).then(tasks.total))

    async with app:
        job = await begin.enqueue()
        follower = await tasks.parents.using(after=[job]).enqueue()
        async with app.worker():
            assert await job.result(timeout=20) == 5
            assert await follower.result(timeout=20) == [5]


async def test_an_error_after_continue_undoes_it(app, tasks):
    @app.task(max_attempts=1)
    async def careless() -> int:
        try:
            return Continue(tasks.add.call(1))
        finally:
            raise Dead("after all")

    async with app, app.worker():
        job = await careless.enqueue()
        with pytest.raises(JobDead):
            await job.result(timeout=20)
        assert await app.jobs.count(task="add") == 0


async def test_a_continue_that_cannot_be_stored_fails_the_job(app, tasks):
    other = Perdure("memory://")

    @other.task
    async def foreign() -> None: ...

    @app.task(max_attempts=1)
    async def astray() -> None:
        return Continue(foreign.call())

    async with app, app.worker():
        with pytest.raises(JobDead, match="not registered"):
            await (await astray.enqueue()).result(timeout=20)


async def test_a_result_that_does_not_fit_fails_the_next_one(app):
    @app.task
    async def word() -> str:
        return "seven"

    @app.task(max_attempts=1)
    async def half(x: int) -> float:
        return x / 2

    async with app, app.worker():
        with pytest.raises(JobDead, match="expected `int`"):
            await (await app.enqueue(word.call().then(half))).result(timeout=20)


async def test_dead_keeps_followers_and_cancel_takes_them_along(app, tasks):
    @app.task(max_attempts=1, backoff=SOON)
    async def fails(ctx: Context, good: bool = False) -> int:
        if ctx.job.attempt == 1:
            raise ValueError("not yet")
        return 20

    async with app, app.worker():
        dead = await fails.enqueue()
        kept = await tasks.parents.using(after=[dead]).enqueue()
        anyway = await tasks.parents.using(after=[dead], run_when="finished").enqueue()
        assert await anyway.result(timeout=20) == [None]
        assert (await kept.refresh()).state is State.BLOCKED
        with pytest.raises(ResultTimeout, match="one of them is dead"):
            await kept.result(timeout=0.05)
        assert await app.dead.retry(dead.id) == 1
        assert await kept.result(timeout=20) == [20]

        waiting = await tasks.add.using(delay=3600).enqueue(1)
        first = await app.enqueue(chain(tasks.add.using(after=[waiting]).call(1), tasks.add.call(2)))
        assert await waiting.cancel()
        with pytest.raises(JobCancelled, match="a job that it waits for was cancelled"):
            await first.result(timeout=20)


async def test_what_cannot_be_a_flow(app, tasks):
    @app.task
    async def nothing() -> None: ...

    @app.task
    async def greedy(a: int, b: int) -> None: ...

    for wrong, why in [
        (lambda: tasks.add.call(1).then(nothing), "takes no argument"),
        (lambda: tasks.add.call(1).then(tasks.add.call(2)), "takes a task"),
        (lambda: chain(), "at least one"),
        (lambda: chain(tasks.add), "takes calls"),
        (lambda: group(tasks.add.call(1), 2), "takes calls"),
        (lambda: Continue(group()), "no job to go on with"),
        (lambda: Continue(7), "takes task.call"),
        (lambda: tasks.add.using(after="x"), "list of handles"),
        (lambda: tasks.add.using(after=["x"]), "not a job id"),
        (lambda: tasks.add.using(run_when="never"), "neither"),
    ]:
        with pytest.raises(InvalidCall, match=why):
            wrong()
    async with app:
        with pytest.raises(InvalidCall, match="no job to wait for"):
            await app.enqueue(group())
        with pytest.raises(
            InvalidCall, match="is handed the result of what is before it and nothing else, and needs b"
        ):
            await app.enqueue(tasks.add.call(1).then(greedy))
        job = await tasks.add.enqueue(1)
        with pytest.raises(InvalidCall, match="after= cannot be given"):
            await app.enqueue(tasks.add.call(1).then(tasks.double.using(after=[job])))


async def test_a_chain_goes_on_with_the_owner_of_a_key(app, tasks):
    @app.task
    async def begin() -> int:
        return Continue(tasks.add.using(unique=Unique("one at a time")).call(1))

    async with app, app.worker():
        owner = await tasks.add.using(unique=Unique("one at a time"), delay=3600).enqueue(40)
        job = await begin.enqueue()
        follower = await tasks.parents.using(after=[job]).enqueue()
        *_, seen = [seen async for seen in job.watch(timeout=20)]
        assert (seen.state, seen.next_id) == (State.SUCCEEDED, owner.id)
        await app.jobs.run_now(owner)
        assert await job.result(timeout=20) == 41
        assert await follower.result(timeout=20) == [41]


async def test_continue_after_the_job_itself_is_refused(app, tasks):
    @app.task(max_attempts=1)
    async def circle(ctx: Context) -> int:
        return Continue(tasks.add.using(after=[ctx.job]).call(1))

    @app.task(max_attempts=1)
    async def astray() -> int:
        return Continue(tasks.add.using(after=["01900000-0000-7000-8000-000000000003"]).call(1))

    async with app, app.worker():
        with pytest.raises(JobDead, match="would wait for ever"):
            await (await circle.enqueue()).result(timeout=20)
        with pytest.raises(JobDead, match=r"UnknownParent: job .* would wait for job 01900000"):
            await (await astray.enqueue()).result(timeout=20)
        assert await app.jobs.count(task="add") == 0


async def test_continue_after_a_follower_of_the_job_is_refused(app, tasks):
    @app.task(max_attempts=1)
    async def first() -> int:
        return Continue(tasks.add.using(after=[follower]).call(1))

    async with app:
        job = await first.enqueue()
        between = await tasks.parents.using(after=[job]).enqueue()
        follower = await tasks.parents.using(after=[between]).enqueue()
        async with app.worker():
            with pytest.raises(JobDead, match="would wait for ever"):
                await job.result(timeout=20)


async def test_continue_after_an_earlier_job_of_the_same_chain_is_refused(app, tasks):
    @app.task(max_attempts=1)
    async def second(begun_by: str) -> int:
        return Continue(tasks.add.using(after=[begun_by]).call(1))

    @app.task
    async def first(ctx: Context) -> int:
        return Continue(second.call(str(ctx.job.id)))

    async with app, app.worker():
        with pytest.raises(JobDead, match="would wait for ever"):
            await (await first.enqueue()).result(timeout=20)


async def test_run_goes_on_to_the_end_of_the_chain(tasks):
    app = tasks.add._declared.registry

    @app.task
    async def count(left: int) -> int:
        return Continue(count.call(left - 1)) if left else 7

    @app.task
    async def begin() -> list[object]:
        return Continue(chain(count.call(1500), tasks.add.call(1), tasks.parents.call()))

    @app.task
    async def fan() -> int:
        return Continue(group(tasks.add.call(1), tasks.double.call(4), count.call(3)).then(tasks.total))

    assert await begin.run() == [2]
    assert await fan.run() == 2 + 8 + 7


# ---- bounds ----------------------------------------------------------------------------------------
async def test_a_chain_whose_first_job_would_be_dropped_is_refused(app, store):
    """By the name of what is wrong: nobody has forgotten a parent, the queue is full."""

    @app.task(queue="small")
    async def first() -> None: ...

    @app.task
    async def second() -> None: ...

    @app.task(queue="other", max_attempts=1)
    async def inside(ctx: Context) -> None:
        await app.enqueue(chain(first.call(), second.call()), connection=await ctx.transaction())

    async with app:
        await app.queues.configure("small", max_depth=1, on_full="drop")
        await first.enqueue()
        with pytest.raises(QueueFull, match=r"full and would drop a job that another .* waits for; nothing was stored"):
            await app.enqueue(chain(first.call(), second.call()))
        assert await app.jobs.count() == 1
        if store in ("redis", "valkey"):
            return
        async with app.worker(queues=["other"]):
            with pytest.raises(JobDead, match=r"QueueFull: a queue is full and would drop"):
                await (await inside.enqueue()).result(timeout=20)


@pytest.mark.parametrize("on_full", ["reject", "wait", "drop"])
async def test_a_chain_goes_on_in_a_full_queue(app, tasks, on_full):
    """The step that has ended is not undone because the next one finds no room."""

    @app.task
    async def first() -> int:
        return Continue(tasks.add.using(queue="narrow").call(1))

    async with app:
        await app.queues.configure("narrow", max_depth=1, on_full=on_full)
        await app.queues.pause("narrow")
        await tasks.add.using(queue="narrow").enqueue(5)
        async with app.worker():
            job = await first.enqueue()
            async with asyncio.timeout(20):
                async for seen in job.watch():
                    assert seen.state is not State.DEAD
            assert (seen.state, seen.failures) == (State.SUCCEEDED, 0)
            assert (await app.queues.list())[-1].depth == 2
            await app.queues.resume("narrow")
            assert await job.result(timeout=20) == 2


async def test_continue_with_a_group_gives_the_list_of_its_results(app, tasks):
    @app.task
    async def both(a: int) -> list[int]:
        return Continue(group(tasks.add.call(a), tasks.double.call(a), chained.call(a)))

    @app.task
    async def chained(a: int) -> int:
        return Continue(tasks.add.call(a, 100))

    @app.task
    async def nested() -> list[int]:
        return Continue(both.call(1))

    @app.task
    async def nested_groups() -> list[list[int]]:
        return Continue(group(both.call(1), both.call(2)))

    @app.batch_task(size=2)
    async def together(items: list[Item[int]]) -> None:
        for item in items:
            await item.succeed(Continue(group(tasks.add.call(item.args), tasks.double.call(item.args))))

    async with app, app.worker():
        assert await (await both.enqueue(3)).result(timeout=20) == [4, 6, 103]
        assert await (await nested.enqueue()).result(timeout=20) == [2, 2, 101]
        assert await (await nested_groups.enqueue()).result(timeout=20) == [[2, 2, 101], [3, 4, 102]]
        assert await (await app.enqueue(both.call(3).then(tasks.total))).result(timeout=20) == 113
        assert await (await together.enqueue(4)).result(timeout=20) == [5, 8]
        assert await both.run(3) == [4, 6, 103]
        assert await nested_groups.run() == [[2, 2, 101], [3, 4, 102]]


async def test_a_group_is_gathered_by_whoever_went_on_with_it(app, tasks):
    """A worker that takes only one task, and one that pulls, find the end of their own chains."""

    @app.task
    async def both() -> list[int]:
        return Continue(group(tasks.add.call(1), tasks.add.call(2)))

    async with app:
        job = await both.using(queue="mine", routing_key="r").enqueue()
        async with app.worker(tasks=["add"]), app.worker(tasks=["both"], queues=["mine"], routing_key="r"):
            assert await job.result(timeout=20) == [2, 3]
        pulled = await both.enqueue()
        async with app.claim(tasks=[both]) as (item,):
            await item.succeed(Continue(group(tasks.add.call(1), tasks.add.call(2))))
        async with app.worker(tasks=["add"]), asyncio.timeout(20):
            while await app.jobs.count(task="both", state=State.READY) == 0:
                await asyncio.sleep(0.02)
        async with app.claim(tasks=[both], max_wait=0) as items:
            assert items == []
        assert await pulled.result(timeout=30) == [2, 3]


async def test_results_of_a_group_that_are_too_large_together_are_a_dead_letter(store, tmp_path):
    app = Perdure(address(store, tmp_path), max_bytes=1000)

    @app.task
    async def large() -> str:
        return "x" * 600

    @app.task
    async def both() -> list[str]:
        return Continue(group(large.call(), large.call()))

    async with app, app.worker():
        with pytest.raises(JobDead, match="the results of its group have 1207 bytes of JSON together, more than 1000"):
            await (await both.enqueue()).result(timeout=20)
