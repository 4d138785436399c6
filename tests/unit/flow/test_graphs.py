"""Graphs, groups and after=: who waits for whom, and what is refused."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from perdure import (
    Context,
    Dead,
    IllegalMove,
    InvalidCall,
    JobDead,
    NotFound,
    Perdure,
    State,
    Unique,
    UnknownParent,
    graph,
    group,
)

NOBODY = UUID("01900000-0000-7000-8000-000000000003")


@pytest.fixture
def note(app):
    @app.task
    async def note(ctx: Context, word: str) -> str:
        return "".join([*map(str, ctx.parents), word])

    return note


async def test_a_graph_runs_in_its_order(app, note):
    g = graph()
    a = g.add(note.call("a"))
    b, c = g.add(note.call("b"), after=[a]), g.add(note.call("c"), after=[a])
    g.add(note.call("d"), after=[c, b])
    async with app, app.worker():
        handles = await app.enqueue(g)
        assert [await handle.result(timeout=20) for handle in handles] == ["a", "ab", "ac", "acabd"]
        with pytest.raises(InvalidCall, match="another graph"):
            graph().add(note.call("x"), after=[a])
        with pytest.raises(InvalidCall, match="what graph"):
            g.add(note.call("x"), after=[handles[0]])
        for wrong in (a, 5, "a"):
            with pytest.raises(InvalidCall, match="what graph"):
                g.add(note.call("x"), after=wrong)
        assert await app.enqueue(graph()) == []


async def test_unknown_parents_are_refused(app, note):
    async with app:
        with pytest.raises(UnknownParent, match=str(NOBODY)):
            await note.using(after=[NOBODY]).enqueue("x")
        with pytest.raises(UnknownParent):
            await app.enqueue([note.call("fine"), note.using(after=[str(NOBODY)]).call("x")])
        gone = await note.using(delay=3600).enqueue("gone")
        await app.jobs.delete(gone)
        with pytest.raises(UnknownParent, match=str(gone.id)):
            await note.using(after=[gone]).enqueue("x")
        many = await asyncio.gather(
            *(note.enqueue("fine") for _ in range(5)),
            note.using(after=[NOBODY]).enqueue("x"),
            return_exceptions=True,
        )
        assert [isinstance(each, UnknownParent) for each in many] == [False] * 5 + [True]
        assert await app.jobs.count() == 5


async def test_a_duplicate_in_a_flow_stands_for_its_owner(app, note):
    async with app:
        owner = await note.using(unique=Unique("k"), delay=3600).enqueue("owner")
        handles = await app.enqueue(group(note.using(unique=Unique("k")).call("again")))
        assert handles.jobs[0].duplicate
        g = graph()
        again = g.add(note.using(unique=Unique("k")).call("again"))
        child = (await app.enqueue(_with(g, note.call("child"), again)))[-1]
        assert (await child.refresh()).after == (owner.id,)
        await app.jobs.run_now(owner)
        async with app.worker():
            assert await child.result(timeout=20) == "ownerchild"


def _with(g, call, node):
    g.add(call, after=[node])
    return g


async def test_deleting_what_others_wait_for(app, note):
    async with app:
        first = await note.using(delay=3600).enqueue("first")
        second = await note.using(after=[first]).enqueue("second")
        third = await note.using(after=[second]).enqueue("third")
        with pytest.raises(IllegalMove, match="wait for what would be deleted"):
            await app.jobs.delete(first)
        assert (await first.refresh()).state is State.SCHEDULED
        assert await app.jobs.delete(first, cascade=True) == 3
        for gone in (first, second, third):
            with pytest.raises(NotFound):
                await gone.refresh()


async def test_followers_that_have_ended_keep_nobody(app, note):
    async with app:
        first = await note.using(delay=3600).enqueue("first")
        cancelled, completed = [await note.using(after=[first]).enqueue("next") for _ in range(2)]
        await cancelled.cancel()
        await app.jobs.complete(completed, "by hand")
        assert await app.jobs.delete(first) == 1
        assert (await completed.refresh()).result == "by hand"


async def test_a_group_is_waited_for_and_moved_as_a_whole(app, note):
    async with app:
        parts = await app.enqueue(group(*(note.using(delay=3600).call(word) for word in "abc")))
        last = await note.using(after=[parts]).enqueue("!")
        assert (await last.refresh()).after == tuple(job.id for job in parts.jobs)
        assert await app.jobs.run_now(parts) == 3
        async with app.worker():
            assert await last.result(timeout=20) == "abc!"
        others = await app.enqueue(group(*(note.using(delay=3600).call(word) for word in "abc")))
        assert await app.jobs.cancel(others) == 3


async def test_completing_from_outside(app, note):
    stopped = asyncio.Event()
    began = asyncio.Event()

    @app.task
    async def slow(ctx: Context) -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.reason = ctx.lost.reason
            stopped.set()
        return "never"

    async with app, app.worker():
        waiting = await note.using(delay=3600).enqueue("x")
        child = await note.using(after=[waiting]).enqueue("!")
        await app.jobs.complete(waiting, "by hand")
        assert await waiting.result(timeout=20) == "by hand"
        assert await child.result(timeout=20) == "by hand!"
        running = await slow.enqueue()
        await asyncio.wait_for(began.wait(), 20)
        await app.jobs.complete(running.id, "outside")
        await asyncio.wait_for(stopped.wait(), 20)
        assert stopped.reason == "already_completed"
        assert await running.result(timeout=20) == "outside"
        unfit = await slow.using(delay=3600).enqueue()
        with pytest.raises(InvalidCall, match="slow: the result does not fit its annotation"):
            await app.jobs.complete(unfit, 7)
        assert (await unfit.refresh()).state is State.SCHEDULED
        with pytest.raises(IllegalMove, match="succeeded"):
            await app.jobs.complete(running.id)
        with pytest.raises(NotFound):
            await app.jobs.complete(NOBODY)


async def test_more_parents_than_a_payload_has_room_for():
    app = Perdure("memory://")

    @app.task
    async def part() -> None: ...

    @app.task
    async def last(ctx: Context) -> int:
        return len(ctx.parents)

    async with app:
        parts = await app.enqueue([part.call() for _ in range(30_000)])
        joined = await last.using(after=parts).enqueue()
        assert (await joined.refresh()).state is State.BLOCKED
        with pytest.raises(InvalidCall, match="names 200001 jobs, more than 200000"):
            await last.using(after=[uuid4() for _ in range(200_001)]).enqueue()


async def test_a_group_that_failed_is_waited_for_no_longer():
    app = Perdure("memory://")

    @app.task(max_attempts=1)
    async def fail() -> str:
        raise ValueError("no")

    async with app, app.worker(queues=["now"]):
        parts = await app.enqueue(group(fail.using(queue="never").call(), fail.using(queue="now").call()))
        before = asyncio.all_tasks()
        with pytest.raises(JobDead):
            await parts.result()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() - before if "result" in repr(task.get_coro())]


async def test_a_large_group(app, note):
    @app.task
    async def count(words: list[str]) -> int:
        return len(words)

    @app.task
    async def last(ctx: Context) -> int:
        return len(ctx.parents)

    async with app:
        flow = group(*(note.call("x") for _ in range(700))).then(count)
        handle = await app.enqueue(flow)
        fan_out = await app.enqueue([last.using(after=[handle]).call() for _ in range(700)])
        async with app.worker():
            assert await handle.result(timeout=60) == 700
            await asyncio.gather(*(each.result(timeout=60) for each in fan_out))
        assert await app.jobs.count(state=State.BLOCKED) == 0


async def test_a_purge_deletes_what_it_may(app, caplog):
    """A dead letter that others wait for stays, and keeps nobody else from being deleted."""

    @app.task(max_attempts=1)
    async def broken(number: int) -> int:
        raise Dead("bad address")

    @app.task
    async def after() -> None: ...

    async with app:
        async with app.worker():
            jobs = [await broken.enqueue(number) for number in range(5)]
            for job in jobs:
                with pytest.raises(JobDead):
                    await job.result(timeout=20)
        followers = [await after.using(after=[jobs[number]]).enqueue() for number in (1, 3)]
        caplog.clear()
        assert await app.dead.purge(task="broken") == 3
        assert [await app.jobs.get(job.id) is not None for job in jobs] == [False, True, False, True, False]
        assert "2 dead letters were not deleted, because jobs wait for them, such as" in caplog.text
        assert await app.dead.purge(task="broken") == 0
        assert await app.dead.purge(task="broken", cascade=True) == 4
        assert [await app.jobs.get(job.id) for job in (*jobs, *followers)] == [None] * 7
