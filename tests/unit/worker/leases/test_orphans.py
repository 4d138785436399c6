"""Whatever a worker holds is run, handed back or reported, however its calls to the store break or are cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from perdure import JobDead, JobHandle, State, StoreError
from tests.support.faults import Fault, Gate


@pytest.fixture
def tasks(app):
    @app.task
    async def first(n: int) -> int:
        return n

    @app.task
    async def second(n: int) -> int:
        return n + 1

    return SimpleNamespace(first=first, second=second)


async def test_followers_whose_parents_are_being_read_when_an_exchange_fails(app, tasks, monkeypatch):
    """The worker begins its loop anew and cancels what it was doing. The followers run all the same."""
    async with app:
        store = await app._runtime.storage()
        async with app.worker(poll=0.05):
            reading = Gate(store, "get", monkeypatch)
            handle = await app.enqueue(tasks.first.call(1).then(tasks.second))
            await asyncio.wait_for(reading.reached.wait(), 10)
            await Fault(store, "exchange", monkeypatch, StoreError("the connection broke")).over()
            await asyncio.wait_for(reading.cancelled.wait(), 30)
            reading.opened.set()
            assert await handle.result(timeout=15) == 2


async def test_followers_whose_parents_are_being_read_when_the_worker_begins_anew(app, tasks, monkeypatch):
    async with app:
        store = await app._runtime.storage()
        async with app.worker(poll=0.05) as worker:
            reading = Gate(store, "get", monkeypatch)
            handle = await app.enqueue(tasks.first.call(1).then(tasks.second))
            await asyncio.wait_for(reading.reached.wait(), 10)
            worker._control.session.claiming.restart()
            await asyncio.wait_for(reading.cancelled.wait(), 30)
            reading.opened.set()
            assert await handle.result(timeout=15) == 2


@pytest.fixture
def waiting(app):
    """A task whose jobs end when they are told to."""
    go_on = asyncio.Event()

    @app.task
    async def waits(n: int) -> int:
        await go_on.wait()
        return n

    async def started(worker, count: int) -> list[JobHandle]:
        handles = [await waits.enqueue(n) for n in range(count)]
        async with asyncio.timeout(10):
            while worker._control.session.slots.running < count:
                await asyncio.sleep(0.005)
        return handles

    return SimpleNamespace(started=started, go_on=go_on)


async def test_ends_that_are_reported_one_by_one_when_the_worker_begins_anew(app, waiting, monkeypatch):
    """Some ends could not be stored together. They are being reported one by one when that is cancelled."""
    async with app:
        store = await app._runtime.storage()
        async with app.worker(poll=0.05) as worker:
            handles = await waiting.started(worker, 5)
            reporting = Gate(store, "apply", monkeypatch)
            Fault(store, "exchange", monkeypatch, ValueError("one of them cannot be stored"))
            waiting.go_on.set()
            await asyncio.wait_for(reporting.reached.wait(), 10)
            worker._control.session.claiming.restart()
            await asyncio.wait_for(reporting.cancelled.wait(), 30)
            monkeypatch.undo()
            assert [await handle.result(timeout=15) for handle in handles] == [*range(5)]


async def test_ends_that_are_reported_one_by_one_when_the_store_breaks(app, waiting, monkeypatch):
    """The store breaks while an end is reported, and while a failure is reported in its place."""
    cannot, broke = ValueError("one of them cannot be stored"), StoreError("the connection broke")
    async with app:
        store = await app._runtime.storage()
        async with app.worker(poll=0.05) as worker:
            handles = await waiting.started(worker, 5)
            applied = Fault(store, "apply", monkeypatch, broke, cannot, broke)
            Fault(store, "exchange", monkeypatch, cannot, cannot, cannot)
            waiting.go_on.set()
            await applied.over()
            assert [await handle.result(timeout=15) for handle in handles] == [*range(5)]


# ---- pull claims -----------------------------------------------------------------------------------
async def ready_again(app, *handles) -> None:
    """Long before their leases are over, and free of charge."""
    async with asyncio.timeout(10):
        for handle in handles:
            while (job := await app.jobs.get(handle.id)).state is not State.READY:
                await asyncio.sleep(0.01)
            assert (job.failures, job.losses) == (0, 0)


async def test_a_pull_claim_that_cannot_read_the_parents_hands_everything_back(app, tasks, monkeypatch):
    async with app:
        store = await app._runtime.storage()
        parent = await tasks.first.enqueue(1)
        follower = await tasks.second.using(after=[parent]).enqueue(1)
        async with app.claim(tasks=["first"]) as (item,):
            await item.succeed(1)
        alone = await tasks.second.enqueue(5)
        Fault(store, "get", monkeypatch, StoreError("the connection broke"))
        with pytest.raises(StoreError):
            async with app.claim(tasks=["second"], limit=2):
                pass
        await ready_again(app, follower, alone)


async def test_a_pull_claim_whose_outcome_is_not_known_hands_back_what_it_took(app, tasks, monkeypatch):
    async with app:
        store = await app._runtime.storage()
        handle = await tasks.first.enqueue(1)
        exchange = store.exchange

        async def unheard(*arguments):
            await exchange(*arguments)
            raise StoreError("the connection broke before the answer came")

        monkeypatch.setattr(store, "exchange", unheard)
        broken = Fault(store, "recover_claim", monkeypatch, *[StoreError("the connection broke")] * 3)
        with pytest.raises(StoreError):
            async with app.claim(tasks=["first"]):
                pass
        monkeypatch.setattr(store, "exchange", exchange)
        await broken.over()
        await ready_again(app, handle)


async def test_a_pull_claim_that_is_cancelled_twice_hands_back_what_it_took(app, tasks, monkeypatch):
    async with app:
        store = await app._runtime.storage()
        handle = await tasks.first.enqueue(1)
        asking = Gate(store, "exchange", monkeypatch)

        async def pull():
            async with app.claim(tasks=["first"]):
                pass

        pulling = asyncio.create_task(pull())
        await asyncio.wait_for(asking.reached.wait(), 10)
        for _ in range(2):
            pulling.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(pulling, 20)
        asking.opened.set()
        await ready_again(app, handle)


async def test_one_item_that_cannot_be_stored_does_not_take_the_others_along(app, tasks, monkeypatch):
    async with app:
        store = await app._runtime.storage()
        handles = [await tasks.first.enqueue(n) for n in range(4)]
        apply = store.apply

        async def picky(changes):
            if any(change.result == "3" for change in changes):
                raise ValueError("a three cannot be stored")
            return await apply(changes)

        async with app.claim(tasks=["first"], limit=4) as items:
            monkeypatch.setattr(store, "apply", picky)
            told = await asyncio.gather(*(item.succeed(n) for n, item in enumerate(items)), return_exceptions=True)
        assert [type(each) for each in told] == [type(None)] * 3 + [ValueError]
        assert [await handle.result(timeout=10) for handle in handles[:3]] == [0, 1, 2]
        bad = await app.jobs.get(handles[3].id)
        assert (bad.state, bad.failures) == (State.SCHEDULED, 1)


# ---- ends that need the store before they can be reported ------------------------------------------
async def test_a_job_that_dies_while_the_store_is_out_of_reach(app, monkeypatch):
    """What undoes it cannot be read. Its end is reported all the same, when the store answers."""

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise LookupError("no such thing")

    async with app:
        store = await app._runtime.storage()
        broken = Fault(store, "kv_read", monkeypatch, *[StoreError("the connection broke")] * 4, when="undo".__eq__)
        async with app.worker(poll=0.05):
            handle = await fails.enqueue()
            await broken.over()
            with pytest.raises(JobDead):
                await handle.result(timeout=10)
        job = await app.jobs.get(handle.id)
        assert (job.state, job.attempt, job.failures, job.losses) == (State.DEAD, 1, 1, 0)
