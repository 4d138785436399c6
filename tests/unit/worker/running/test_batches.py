"""Batch tasks: formed by size or time, each item with an outcome of its own."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from perdure import (
    PROVIDED,
    Backoff,
    Context,
    Continue,
    Dead,
    HoldLost,
    InvalidCall,
    Item,
    JobDead,
    JobSkipped,
    Loss,
    Perdure,
    Retry,
    Skip,
    State,
    chain,
)
from tests.support.every_store import ON_STORES

SOON = Backoff.fixed(0.01)


@dataclass
class Text:
    words: str


async def settled(handles):
    """How all of these ended: the state, and the result."""
    ends = []
    for handle in handles:
        try:
            ends.append(await handle.result(timeout=10))
        except (JobDead, JobSkipped) as end:
            ends.append(end.job.state)
    return ends


async def until_known(handle, wanted):
    async with asyncio.timeout(10):
        while (await handle.refresh()).state is not wanted:
            await asyncio.sleep(0.01)


@ON_STORES
async def test_jobs_are_run_together_each_with_its_result(app, kind, machine):
    sizes = []

    def embed(items: list[Item[Text]]) -> list[int]:
        sizes.append(len(items))
        assert [item.job.task for item in items] == ["embed"] * len(items)
        assert Context.current().jobs == tuple(item.job for item in items)
        return [len(item.args.words) for item in items]

    async def embed_async(items: list[Item[Text]]) -> list[int]:
        await asyncio.sleep(0)
        return embed(items)

    task = app.batch_task(name="embed", size=4, wait=0.3)(embed_async if kind == "async" else embed)
    async with app, app.worker(concurrency=1):
        began = time.monotonic()
        handles = await app.enqueue([task.call(Text("x" * n)) for n in range(8)])
        assert await settled(handles) == list(range(8))
        took = time.monotonic() - began
        seen = await handles[3].refresh()
        assert (seen.payload, seen.attempt, seen.result) == ('{"items":{"words":"xxx"}}', 1, 3)
        late = await task.enqueue(Text("late"))
        assert await late.result(timeout=10) == 4
    assert sizes == [4, 4, 1]
    assert took < machine.seconds(5)


async def test_the_workers_size_wins_and_waiting_jobs_are_filled_up(app):
    sizes = []

    @app.batch_task(name="embed", size=100, wait=5)
    async def embed(items: list[Item[int]]) -> None:
        sizes.append(len(items))

    async with app, app.worker(concurrency=1, batch_size={"embed": 3}):
        first = await app.enqueue([embed.call(n) for n in range(2)])
        await until_known(first[0], State.RUNNING)
        second = await embed.enqueue(2)
        assert await settled([*first, second]) == [None] * 3
    assert sizes == [3]
    with pytest.raises(InvalidCall, match="no batch task"):
        await app.worker(batch_size={"nobody": 3}).start()
    with pytest.raises(InvalidCall, match="between 1 and"):
        app.worker(batch_size={"embed": 0})


@ON_STORES
async def test_each_item_has_an_outcome_of_its_own_and_keeps_it(app, kind):
    seen = {}

    @app.batch_task(name="mixed", size=8, wait=0.2, max_attempts=3, backoff=SOON)
    async def mixed(items: list[Item[str]]) -> None:
        for item in items:
            again = item.job.attempt > 1
            match item.args:
                case "succeed":
                    await item.succeed({"fine": True})
                case "retry":
                    await (item.succeed("at last") if again else item.retry(0.01, reason="busy"))
                case "at":
                    await (item.succeed() if again else item.retry(at=datetime.now(UTC) + timedelta(milliseconds=5)))
                case "snooze":
                    await (item.succeed("awake") if again else item.snooze(0.01))
                case "skip":
                    await item.skip("known")
                case "dead":
                    await item.dead("bad address")
        for item in items:
            seen[item.args] = item._said
            if item.args != "left":
                with pytest.raises(InvalidCall, match="has its outcome already"):
                    await item.succeed()
        raise ValueError("after all")

    def mixed_in_thread(items: list[Item[str]]) -> None:
        for item in items:
            again = item.job.attempt > 1
            match item.args:
                case "succeed":
                    item.sync.progress(5)
                    item.sync.succeed({"fine": True})
                case "retry" | "at":
                    item.sync.succeed("at last") if again else item.sync.retry(0.01, reason="busy")
                case "snooze":
                    item.sync.succeed("awake") if again else item.sync.snooze(0.01)
                case "skip":
                    item.sync.skip("known")
                case "dead":
                    item.sync.dead("bad address")
        raise ValueError("after all")

    task = mixed if kind == "async" else app.batch_task(name="mixed2", size=8, wait=0.2, backoff=SOON)(mixed_in_thread)
    words = ["succeed", "retry", "at", "snooze", "skip", "dead", "left"]
    async with app, app.worker():
        handles = await app.enqueue([task.call(word) for word in words])
        ends = dict(zip(words, await settled(handles), strict=True))
        jobs = {word: await handle.refresh() for word, handle in zip(words, handles, strict=True)}
    last = None if kind == "async" else "at last"
    assert ends == {
        "succeed": {"fine": True}, "retry": "at last", "at": last, "snooze": "awake",
        "skip": State.SKIPPED, "dead": State.DEAD, "left": State.DEAD,
    }  # fmt: skip
    assert (jobs["retry"].attempt, jobs["retry"].failures, jobs["retry"].errors[0].message) == (2, 1, "busy")
    assert (jobs["snooze"].attempt, jobs["snooze"].failures) == (2, 0)
    assert (jobs["skip"].reason, jobs["dead"].reason) == ("known", "bad address")
    assert (jobs["left"].failures, jobs["left"].errors[0].kind) == (3, "ValueError")


async def test_an_outcome_is_on_record_when_the_verb_returns(app):
    states = []

    @app.batch_task(size=2, wait=0.1)
    async def two(items: list[Item[int]]) -> None:
        await items[0].succeed(7)
        states.append((await app.jobs.get(items[0].job.id)).state)
        with pytest.raises(InvalidCall, match="result"):
            await items[1].succeed(object())
        await items[1].succeed("else")

    async with app, app.worker():
        assert await settled(await app.enqueue([two.call(1), two.call(2)])) == [7, "else"]
    assert states == [State.SUCCEEDED]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], r"gave 1 result\(s\) for 2 item\(s\)"),
        ("ab", "gave str; a batch task gives a list"),
        (Skip("all of them"), None),
    ],
)
async def test_what_does_not_fit_is_the_failure_of_what_is_left(value, words):
    app = Perdure("memory://")

    @app.batch_task(size=3, wait=0.05, max_attempts=1)
    async def odd(items: list[Item[int]]) -> list[int]:
        for item in items:
            if item.args == 0 and words is None:
                await item.succeed(5)
        if isinstance(value, Skip):
            raise value
        return value

    async with app, app.worker():
        handles = await app.enqueue([odd.call(n) for n in range(2)])
        ends = await settled(handles)
        seen = await handles[1].refresh()
    if words is None:
        assert ends == [5, State.SKIPPED]
    else:
        assert ends == [State.DEAD] * 2
        assert seen.failures == 1
        assert re.search(words, seen.errors[0].message)


async def test_arguments_that_do_not_fit_fail_their_item_alone(tmp_path):
    old, new = (Perdure(f"sqlite:///{tmp_path / 'jobs.db'}") for _ in range(2))

    @old.batch_task(name="sizes", size=2, max_attempts=1)
    async def before(items: list[Item[object]]) -> None: ...

    @new.batch_task(name="sizes", size=2, wait=0.2, max_attempts=1)
    async def after(items: list[Item[int]]) -> list[int]:
        return [item.args for item in items]

    async with old, new:
        handles = await old.enqueue([before.call(1), before.call("two")])
        async with new.worker():
            good, bad = [after.handle(handle.id) for handle in handles]
            assert await settled([good, bad]) == [1, State.DEAD]
            assert "argument 'items'" in (await bad.refresh()).errors[0].message


async def test_a_lost_item_is_marked_and_the_others_go_on(app):
    begun, go_on, seen = asyncio.Event(), asyncio.Event(), {}

    @app.batch_task(size=3, wait=0.2, lease=1)
    async def slow(items: list[Item[str]]) -> list[str]:
        begun.set()
        cancelled = next(item for item in items if item.args == "cancel")
        seen["reason"] = await cancelled.lost.wait()
        with pytest.raises(HoldLost):
            await cancelled.succeed()
        seen["others"] = [item.lost.is_set() for item in items if item is not cancelled]
        go_on.set()
        return [item.args for item in items]

    async with app, app.worker():
        handles = await app.enqueue([slow.call(word) for word in ("a", "cancel", "b")])
        await begun.wait()
        assert await handles[1].cancel()
        assert await settled([handles[0], handles[2]]) == ["a", "b"]
        await until_known(handles[1], State.CANCELLED)
    assert seen == {"reason": Loss.CANCELLED, "others": [False, False]}


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_timeouts_are_per_item_and_the_call_ends_with_the_last(kind):
    app = Perdure("memory://")
    release, ended = threading.Event(), []

    async def endless_async(items: list[Item[int]]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(Context.current().lost.reason)

    def endless(items: list[Item[int]]) -> None:
        release.wait(30)
        ended.append(Context.current().lost.reason)

    task = app.batch_task(name="endless", size=2, wait=0.1, max_attempts=1)(
        endless_async if kind == "async" else endless
    )

    @app.batch_task(size=1)
    def after(items: list[Item[int]]) -> list[str]:
        return ["after"]

    async with app, app.worker(concurrency=1, grace=0):
        short, longer = await app.enqueue([task.using(timeout=0.05).call(1), task.using(timeout=0.4).call(2)])
        assert await settled([short]) == [State.DEAD]
        assert (await longer.refresh()).state is State.RUNNING  # it goes on
        assert await settled([longer]) == [State.DEAD]
        assert await settled([await after.enqueue(1)]) == ["after"]
        assert (await longer.refresh()).errors[0].kind == "TimeoutError"
        release.set()
        async with asyncio.timeout(10):
            while not ended:
                await asyncio.sleep(0.01)
    assert ended == [Loss.TIMEOUT]


async def test_at_shutdown_what_waits_and_what_runs_is_handed_back(app):
    begun = asyncio.Event()

    @app.batch_task(size=2, wait=30, lease=5)
    async def slow(items: list[Item[int]]) -> None:
        await items[0].succeed("kept")
        begun.set()
        await asyncio.sleep(60)

    async with app:
        handles = await app.enqueue([slow.call(n) for n in range(3)])  # the third waits for company
        async with app.worker(grace=0, concurrency=1):
            await begun.wait()
        seen = [await handle.refresh() for handle in handles]
    assert [job.state for job in seen] == [State.SUCCEEDED, State.READY, State.READY]
    assert [job.failures for job in seen] == [0, 0, 0]


async def test_concurrency_counts_batches_and_single_jobs_are_not_starved(app):
    now, most, release = [], [], asyncio.Event()

    @app.batch_task(size=2, wait=0, concurrency=1)
    async def heavy(items: list[Item[int]]) -> None:
        now.append(items)
        most.append(len(now))
        await release.wait()
        now.remove(items)

    @app.task
    async def light(n: int) -> int:
        return n

    async with app, app.worker(concurrency=2, poll=0.2):
        heavies = await app.enqueue([heavy.call(n) for n in range(6)])
        assert await settled(await app.enqueue([light.call(n) for n in range(10)])) == list(range(10))
        assert await app.jobs.count(task="heavy", state=State.RUNNING) <= 4
        release.set()
        assert await settled(heavies) == [None] * 6
    assert most == [1] * len(most)


async def test_middleware_is_once_around_a_batch_and_things_are_provided():
    app = Perdure("memory://")
    said = []

    class Model:
        factor = 10

    app.provide(Model, Model)

    @app.middleware
    async def around(ctx: Context, call_next):
        said.append([job.payload for job in ctx.jobs])
        await ctx.progress("begun")
        value = await call_next()
        assert ctx.get(Model).factor == 10
        return value

    @app.batch_task(size=2, wait=0.2)
    async def scale(items: list[Item[int]], model: Model = PROVIDED) -> list[int]:
        assert items[0].get(Model) is model
        return [item.args * model.factor for item in items]

    async with app, app.worker():
        handles = await app.enqueue([scale.call(1), scale.call(2)])
        assert await settled(handles) == [10, 20]
        assert (await handles[1].refresh()).progress == "begun"
    assert said == [['{"items":1}', '{"items":2}']]
    assert await scale.run(3) == 30


async def test_run_gives_the_items_own_end():
    app = Perdure("memory://")

    @app.batch_task(size=2)
    async def end(items: list[Item[str]]) -> None:
        (item,) = items
        match item.args:
            case "succeed":
                await item.succeed(5)
            case "retry":
                await item.retry(3)
            case "dead":
                await item.dead("no")

    assert await end.run("succeed") == 5
    assert await end.run("nothing") is None
    with pytest.raises(Retry):
        await end.run("retry")
    with pytest.raises(Dead, match="no"):
        await end.run("dead")


async def test_each_item_may_have_a_transaction():
    app = Perdure("memory://")

    @app.batch_task(size=2, wait=0.1)
    async def two(items: list[Item[int]]) -> None:
        with pytest.raises(InvalidCall, match="no transaction of its own"):
            await Context.current().transaction()
        for item in items:
            await item.transaction()
            await item.succeed(item.args)

    async with app, app.worker():
        assert await settled(await app.enqueue([two.call(1), two.call(2)])) == [1, 2]


def test_what_is_no_batch_task():
    app = Perdure("memory://")
    with pytest.raises(InvalidCall, match="one list of items"):

        @app.batch_task(size=2)
        async def nothing() -> None: ...

    with pytest.raises(InvalidCall, match="one list of items"):

        @app.batch_task(size=2)
        async def with_context(ctx: Context, items: list[Item[int]]) -> None: ...

    @app.batch_task(size=2)
    async def plain(items: list[int]) -> None: ...

    with pytest.raises(InvalidCall, match=r"must be list\[Item\[Arguments\]\]"):
        plain.call(1)

    @app.batch_task(size=2)
    async def single(item: int) -> None: ...

    with pytest.raises(InvalidCall, match=r"'item' is annotated <class 'int'>; it must be list\[Item\[Arguments\]\]"):
        single.call(1)
    for size in (0, -1, True, 2.5):
        with pytest.raises(InvalidCall, match="size"):
            app.batch_task(size=size)


async def test_items_of_a_flow_see_their_parents_and_continue():
    app = Perdure("memory://")

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.batch_task(size=2)
    async def onward(items: list[Item[int]]) -> None:
        for item in items:
            await item.succeed(Continue(double.call(item.args + sum(item.parents))))

    @app.batch_task(size=2, max_attempts=1)
    async def astray(items: list[Item[int]]) -> None:
        with pytest.raises(InvalidCall, match="not registered"):
            await items[0].succeed(Continue(_foreign().call()))
        await items[0].succeed("told at once")

    async with app, app.worker():
        last = await app.enqueue(chain(double.call(10), onward.call(1)))
        assert await last.result(timeout=10) == 2 * (1 + 20)
        assert await (await astray.enqueue(1)).result(timeout=10) == "told at once"


def _foreign():
    @Perdure("memory://").task
    async def foreign() -> None: ...

    return foreign
