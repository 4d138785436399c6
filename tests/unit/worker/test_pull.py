"""Pulling jobs by hand, on every store."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from perdure import ANY, Continue, HoldLost, InvalidCall, Item, JobDead, Loss, Perdure, State, StoreError
from perdure.core.clock import SECOND, boottime
from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want
from perdure.worker import pull_upkeep


@dataclass
class Text:
    words: str


def declare(app):
    @app.batch_task(name="embed", size=8, max_attempts=1, lease=10)
    async def embed(items: list[Item[Text]]) -> list[int]:
        raise AssertionError("pulled, never run")

    return embed


async def left_by_a_dead_puller(app, task):
    """A job under a lease that nobody renews."""
    handle = await task.enqueue()
    store = await app._runtime.storage()
    (record,) = await store.claim(Claim("dead", new_stamp(), (Want(1),)))
    assert record.id == str(handle.id)
    return handle


@pytest.mark.parametrize("open_for", [10.0, 0.0])
async def test_pullers_bring_back_what_a_dead_one_left_without_any_worker(app, monkeypatch, open_for):
    """Whether they wait for jobs or come and go."""
    monkeypatch.setattr(pull_upkeep, "ROUND", 0.2)

    @app.task(lease=0.6)
    async def alone() -> None: ...

    async with app:
        handle = await left_by_a_dead_puller(app, alone)
        async with asyncio.timeout(10):
            items = []
            while not items:
                async with app.claim(tasks=[alone], max_wait=open_for) as items:
                    for item in items:
                        await item.succeed(None)
        assert [item.job.attempt for item in items] == [2]
        assert (await handle.refresh()).state is State.SUCCEEDED


async def pull_and_raise(app):
    async with app.claim(tasks=["embed"], limit=2) as items:
        await items[0].retry()
        raise RuntimeError("mine")


async def test_a_list_of_several_tasks_is_claimed_in_its_order(app):
    @app.task
    async def one(number: int) -> None: ...

    @app.task
    async def two(number: int) -> None: ...

    async with app:
        calls = [[one, two, one.using(tags=["x"]), two.using(key="k")][n % 4].call(n) for n in range(12)]
        handles = await app.enqueue(calls)
        async with app.claim(tasks=["one", "two"], limit=12) as items:
            assert [item.job.id for item in items] == [handle.id for handle in handles]


async def test_items_get_their_outcomes_and_the_rest_is_handed_back(app):
    embed = declare(app)
    async with app:
        handles = await app.enqueue([embed.call(Text("x" * n)) for n in range(6)])
        async with app.claim(tasks=[embed], limit=5) as items:
            assert [item.args for item in items] == [Text("x" * n) for n in range(5)]
            assert {(await app.jobs.get(item.job.id)).state for item in items} == {State.RUNNING}
            await items[0].succeed(0)
            assert await handles[0].result(timeout=10) == 0  # on record inside the block
            await asyncio.gather(items[1].skip("known"), items[2].dead("bad"), items[3].snooze(60))
            await items[4].progress(50)
            with pytest.raises(InvalidCall, match="has its outcome already: skipped"):
                await items[1].succeed()
        states = [(await handle.refresh()).state for handle in handles]
        assert states == [State.SUCCEEDED, State.SKIPPED, State.DEAD, State.SCHEDULED, State.READY, State.READY]
        left = await handles[4].refresh()
        assert (left.attempt, left.failures, left.leased_by) == (1, 0, None)
        with pytest.raises(InvalidCall, match="claim the job again"):
            await items[4].succeed()
        with pytest.raises(RuntimeError, match="mine"):
            await pull_and_raise(app)
        with pytest.raises(JobDead):  # its one attempt failed by its own word
            await handles[4].result(timeout=10)
        assert (await handles[5].refresh()).state is State.READY


async def test_max_wait_is_for_as_many_as_were_asked_for(app):
    embed = declare(app)
    async with app:
        began = time.monotonic()
        async with app.claim(tasks=["embed"]) as items:
            assert items == []
        async with app.claim(tasks=["embed"], max_wait=0.1) as items:
            assert items == []
        assert time.monotonic() - began >= 0.1

        async def late():
            await asyncio.sleep(0.1)
            return await embed.enqueue(Text("late"))

        first = await embed.enqueue(Text("first"))
        coming = asyncio.create_task(late())
        async with asyncio.timeout(20), app.claim(tasks=["embed"], limit=2, max_wait=30.0) as items:
            assert [item.args.words for item in items] == ["first", "late"]
            for item in items:
                await item.succeed(4)
        assert await first.result(timeout=10) == await (await coming).result(timeout=10) == 4
        await embed.enqueue(Text("alone"))
        async with asyncio.timeout(20), app.claim(tasks=["embed"], limit=2, max_wait=0.2) as items:
            (item,) = items
            await item.succeed(5)
        await embed.using(delay=0.2).enqueue(Text("due"))
        async with asyncio.timeout(20), app.claim(tasks=["embed"], max_wait=30.0) as items:
            assert [item.args.words for item in items] == ["due"]


async def test_leases_are_renewed_inside_and_lost_items_say_so(app):
    @app.task(lease=0.6, timeout=None)
    async def slow(n: int) -> int: ...

    async with app:
        kept, cancelled = await app.enqueue([slow.call(1), slow.call(2)])
        async with app.claim(tasks=[slow], limit=2) as items:
            assert [item.args for item in items] == [{"n": 1}, {"n": 2}]
            assert await cancelled.cancel()
            assert await asyncio.wait_for(items[1].lost.wait(), 10) is Loss.CANCELLED
            with pytest.raises(HoldLost):
                await items[1].succeed()
            async with app.worker(tasks=[slow], poll=0.05):  # it would take what lapses
                await asyncio.sleep(1.2)
            assert not items[0].lost.is_set()
            await items[0].succeed(1)
        assert await kept.result(timeout=10) == 1
        assert (await kept.refresh()).attempt == 1


async def test_a_shorter_lease_than_the_tasks_own_is_on_record(app):
    @app.task(lease=60, timeout=None)
    async def slow(n: int) -> int: ...

    async with app:
        handle, store = await slow.enqueue(1), await app._runtime.storage()

        async def leased_until():
            (record,) = await store.get([str(handle.id)])
            return record.leased_until

        async with app.claim(tasks=[slow], lease=2) as items:
            first = await leased_until()
            assert first <= await store.now() + 2 * SECOND
            async with asyncio.timeout(10):
                while (renewed := await leased_until()) == first:
                    await asyncio.sleep(0.02)
            assert renewed <= await store.now() + 2 * SECOND
            await items[0].succeed(1)


async def test_a_longer_lease_than_the_tasks_own_is_on_record(app):
    @app.task(lease=2, timeout=None)
    async def slow(n: int) -> int: ...

    async with app:
        handle, store = await slow.enqueue(1), await app._runtime.storage()
        pull = app.claim(tasks=[slow], lease=120)
        async with pull as items:
            (record,) = await store.get([str(handle.id)])
            now = await store.now()
            assert now + 100 * SECOND < record.leased_until <= now + 120 * SECOND
            (attempt,) = pull._held.at_work()
            assert attempt.trusted_until > boottime() + 60, "what was renewed for so long is trusted for so long"
            await store.lapsed(9, 3600 * SECOND)  # upkeep does not cut it
            assert (await store.get([str(handle.id)]))[0].leased_until == record.leased_until
            await items[0].succeed(1)
        assert await handle.result(timeout=30) == 1


async def test_a_longer_lease_is_not_trusted_before_it_is_renewed(app):
    @app.task(lease=2, timeout=None)
    async def slow(n: int) -> int: ...

    async with app:
        await slow.enqueue(1)
        store = await app._runtime.storage()
        renew = store.renew

        async def fails(*given, **options):
            raise StoreError("out of reach")

        store.renew = fails
        pull = app.claim(tasks=[slow], lease=120)
        async with pull:
            (attempt,) = pull._held.at_work()
            assert attempt.trusted_until < boottime() + 2
            store.renew = renew


async def test_others_wait_for_a_killed_puller_no_longer_than_its_lease(app, monkeypatch, machine):
    monkeypatch.setattr(pull_upkeep, "ROUND", 0.2)

    @app.task(lease=6)
    async def slow() -> None: ...

    async with app:
        handle = await slow.enqueue()
        killed = app.claim(tasks=[slow], lease=0.5)
        await killed.__aenter__()
        await killed._keeping.stop()  # as if it was killed: nobody renews
        began = time.monotonic()
        async with asyncio.timeout(50), app.claim(tasks=[slow], max_wait=50) as items:
            assert [item.job.id for item in items] == [handle.id]
            took = time.monotonic() - began
        await killed._hand_back()
        assert took < machine.seconds(5.5), "a third of the task's lease until it is reaped, and not all of it"


async def test_routing_keys_of_those_who_pull(app):
    @app.task
    async def work(n: int) -> None: ...

    async with app:
        await app.enqueue([work.using(routing_key=key).call(n) for n, key in enumerate(["x", None, "y"])])

        async def pulled(key):
            async with app.claim(tasks=["work"], routing_key=key, limit=9) as items:
                return sorted(item.args["n"] for item in items)

        assert (await pulled("x"), await pulled(None), await pulled(ANY)) == ([0], [1], [0, 1, 2])


async def test_a_process_without_the_handlers_pulls_too(tmp_path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    sender, puller = Perdure(url), Perdure(url)

    @sender.task(timeout=0.2, max_attempts=1)
    async def far(a: int, b: str = "b") -> dict[str, int]: ...

    async with sender, puller:
        job, slow = await sender.enqueue([far.call(1), far.call(2)])
        async with puller.claim(tasks=["far"], limit=2, lease=1) as items:
            assert [item.args for item in items] == [{"a": 1}, {"a": 2}]
            await items[0].succeed({"n": 5})
            assert await asyncio.wait_for(items[1].lost.wait(), 10) is Loss.TIMEOUT
        assert await job.result(timeout=10) == {"n": 5}
        with pytest.raises(JobDead):
            await slow.result(timeout=10)


def test_the_blocking_form(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")
    embed = declare(app)
    with app.sync:
        first, second = app.sync.enqueue([embed.call(Text("a")), embed.call(Text("b"))])
        with app.sync.claim(tasks=["embed"], limit=2) as items:
            items[0].sync.succeed(7)
            assert threading.current_thread() is threading.main_thread()
        assert first.sync.result(timeout=10) == 7
        assert second.sync.refresh().state is State.READY
        with pytest.raises(RuntimeError, match="mine"), app.sync.claim(tasks=["embed"]):
            raise RuntimeError("mine")
        assert second.sync.refresh().state is State.READY


async def test_a_cancelled_wait_leaves_nothing_behind():
    app = Perdure("memory://")
    embed = declare(app)
    async with app:
        store = await app._runtime.storage()
        entered, go_on = asyncio.Event(), asyncio.Event()
        exchange = store.exchange

        async def slow(changes, claim=None, started=()):
            answer = await exchange(changes, claim, started)
            entered.set()
            await go_on.wait()
            return answer

        job = await embed.enqueue(Text("x"))
        store.exchange = slow

        async def pull():
            async with app.claim(tasks=["embed"]):
                raise AssertionError("never")

        pulling = asyncio.create_task(pull())
        await entered.wait()
        pulling.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        assert (await job.refresh()).state is State.READY


async def test_what_cannot_be_asked_for():
    app = Perdure("memory://")
    wrong_tasks = [dict(tasks=[]), dict(tasks="embed"), dict(tasks=[5]), dict(tasks=5)]
    wrong_rest = [dict(limit=0), dict(limit=True), dict(lease=0), dict(max_wait=-1), dict(routing_key=5)]
    for wrong in (*wrong_tasks, *({"tasks": ["a"], **each} for each in wrong_rest)):
        with pytest.raises(InvalidCall):
            app.claim(**wrong)


async def test_a_pulled_item_continues_its_chain(app):
    @app.task
    async def first(x: int) -> int:
        raise AssertionError("pulled, never run")

    @app.task
    async def second(x: int) -> int:
        return 2 * x

    async with app:
        job = await first.enqueue(4)
        async with app.claim(tasks=[first]) as (item,):
            await item.succeed(Continue(second.call(item.args["x"])))
        async with app.worker():
            assert await job.result(timeout=10) == 8
