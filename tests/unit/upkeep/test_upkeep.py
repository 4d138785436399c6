"""The round of upkeep: prompt where there is something to do, and few questions where there is nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import JobCancelled, Perdure, Retention, State
from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.clock import SECOND
from perdure.core.ids import new_id
from perdure.core.record import NewJob
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock
from perdure.upkeep import upkeep as upkeep_module
from perdure.upkeep.store_contact import StoreContact
from perdure.upkeep.upkeep import Upkeep


class Counting(MemoryStorage):
    """A store that counts how often it was asked for expired jobs, and to prune."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked = Counter[str]()

    async def expired(self, limit):
        self.asked["expired"] += 1
        return await super().expired(limit)

    async def prune(self, limit):
        self.asked["prune"] += 1
        return await super().prune(limit)


async def at_once(stopping, seconds):
    return stopping.is_set()


async def answered(answer):
    return await answer


def upkeep(store, *, expiring: bool = False, brief: bool = False) -> Upkeep:
    return Upkeep(store, StoreContact(), at_once, answered, lambda: expiring, lambda: brief, "".__eq__)


def expiring_job() -> NewJob:
    return NewJob(
        id=new_id(),
        task="t",
        payload="{}",
        backoff=DEFAULT_BACKOFF.text(),
        retention=DEFAULT_RETENTION.text(),
        dead_retention=DEFAULT_DEAD_RETENTION.text(),
        expires=SECOND,
    )


async def rounds_until_cancelled(clock, store, keeping) -> int:
    job = expiring_job()
    await store.enqueue([job])
    clock.advance(2)
    for number in range(1, 100):
        await keeping.one_round()
        (seen,) = await store.get([job.id])
        if seen.state is State.CANCELLED:
            return number
    raise AssertionError("it was never cancelled")


async def test_where_jobs_may_expire_they_are_cancelled_within_two_rounds():
    clock = ManualClock()
    store = MemoryStorage(clock)
    keeping = upkeep(store, expiring=True)
    assert max([await rounds_until_cancelled(clock, store, keeping) for _ in range(30)]) <= 2


async def test_one_that_was_found_expired_makes_the_next_ones_prompt():
    clock = ManualClock()
    store = MemoryStorage(clock)
    keeping = upkeep(store, expiring=False)
    await rounds_until_cancelled(clock, store, keeping)
    assert max([await rounds_until_cancelled(clock, store, keeping) for _ in range(30)]) <= 2


async def test_where_nothing_expires_it_is_rarely_asked_for():
    store = Counting(ManualClock())
    keeping = upkeep(store, expiring=False)
    for _ in range(100):
        await keeping.one_round()
    assert store.asked["expired"] == 10


@pytest.mark.parametrize("where", ["using", "task"])
async def test_a_worker_knows_of_jobs_that_may_expire(where, monkeypatch):
    monkeypatch.setattr(upkeep_module, "ROUND", 0.01)
    app = Perdure("memory://")

    @app.task(expires=0.05 if where == "task" else None)
    async def late() -> None: ...

    await app.queues.pause("default")
    task = late.using(expires=0.05) if where == "using" else late
    async with app.worker() as worker:
        job = await task.enqueue()
        assert worker._control.session.may_expire()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)


@pytest.mark.parametrize(("brief", "times"), [(False, 5), (True, 55)])
async def test_where_jobs_are_kept_for_a_short_time_it_prunes_often(brief, times):
    store = Counting(ManualClock())
    keeping = upkeep(store, brief=brief)
    for _ in range(100):
        await keeping.one_round()
    assert store.asked["prune"] == times


async def test_a_worker_that_lives_for_seconds_prunes_once():
    store = Counting(ManualClock())
    keeping = upkeep(store)
    for _ in range(3):
        await keeping.one_round()
    assert store.asked["prune"] == 1


@pytest.mark.parametrize("where", ["using", "task", "app"])
async def test_a_worker_knows_of_jobs_that_are_kept_for_a_short_time(where, monkeypatch):
    monkeypatch.setattr(upkeep_module, "ROUND", 0.01)
    kept = Retention.keep(last=2)
    app = Perdure("memory://", retention=kept) if where == "app" else Perdure("memory://")

    @app.task(**({"retention": kept} if where == "task" else {}))
    async def counted() -> None: ...

    task = counted.using(retention=kept) if where == "using" else counted
    async with app.worker() as worker, asyncio.timeout(10):
        await app.enqueue([task.call() for _ in range(5)])
        assert worker._control.session.keeps_briefly()
        while await app.jobs.count(task="counted") > 2:
            await asyncio.sleep(0.01)


async def test_usual_retention_is_not_short():
    app = Perdure("memory://")

    @app.task(retention=Retention.delete())  # hidden at once: nobody misses it
    async def usual() -> None: ...

    async with app.worker() as worker:
        await usual.using(retention=Retention.keep(age=86_400)).enqueue()
        assert not worker._control.session.keeps_briefly()
