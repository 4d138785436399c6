"""Schedules that code declares, and what the store has of them over restarts, changes and removals."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from perdure import Perdure
from perdure.schedules.firing import fire
from perdure.schedules.scheduler import Scheduler

from .conftest import NOON, address

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def make(store, clock, tmp_path):
    """Another run of the program: a new app on the same store."""
    url = address(store, tmp_path)
    first = Perdure(url, clock=clock)

    def make() -> Perdure:
        app = Perdure(url, clock=clock)
        app._runtime.loops._open_store = first._runtime.loops._opener(migrate=True)  # one memory for all
        return app

    return make


def declaring(make, cron="0 3 * * *", *, declared=True, **options):
    app = make()

    @app.task
    async def clean(days: int = 1) -> None: ...

    if declared:
        app.schedule(cron, **options)(clean)
    app.clean = clean
    return app


async def start(app):
    async with app, app.worker():
        return {schedule.name: schedule for schedule in await app.schedules.list()}


async def versions(app):
    storage = await app._runtime.storage()
    return {row.name: row.version for row in await storage.kv_read("schedule")}


async def test_written_when_new_and_when_the_text_changed(make, clock):
    app = declaring(make)
    (found,) = (await start(app)).values()
    assert (found.name, found.task, found.cron, found.declared) == ("clean", "clean", "0 3 * * *", True)
    assert found.next_at == NOON + timedelta(hours=15)
    async with app:
        await app.schedules.pause("clean")
    clock.advance(600)
    before = await _versions(declaring(make))
    assert (await start(declaring(make)))["clean"].paused
    assert await _versions(declaring(make)) == before  # a restart writes nothing
    changed = (await start(declaring(make, "0 4 * * *")))["clean"]
    assert (changed.cron, changed.paused) == ("0 4 * * *", True)
    assert await _versions(declaring(make)) == {"clean": before["clean"] + 1}


async def _versions(app):
    async with app:
        return await versions(app)


async def test_what_was_changed_at_run_time_stays_until_the_code_says_otherwise(make):
    app = declaring(make)
    await start(app)
    async with app:
        await app.schedules.reschedule("clean", "30 5 * * *")
    assert (await start(declaring(make)))["clean"].cron == "30 5 * * *"
    assert (await start(declaring(make, "0 7 * * *")))["clean"].cron == "0 7 * * *"


async def test_a_tick_during_a_restart_is_not_lost(make, clock):
    await start(declaring(make, "* * * * *"))
    clock.advance(70)
    async with declaring(make, "* * * * *") as app, app.worker():
        for _ in range(500):
            if await app.jobs.count():
                break
            await asyncio.sleep(0.01)
        (job,) = (await app.jobs.find()).items
        assert job.meta["tick"] == (NOON + timedelta(minutes=1)).isoformat()


async def test_removed_in_code_it_is_an_orphan_that_does_not_fire(make, clock, caplog):
    await start(declaring(make, "* * * * *", missed="once"))
    with caplog.at_level(logging.WARNING):
        (orphan,) = (await start(declaring(make, declared=False))).values()
    assert "schedule clean (clean) was declared in code that is gone" in caplog.text
    assert (orphan.orphan, orphan.next_at) == (True, None)
    clock.advance(3600)
    async with declaring(make, declared=False) as app:
        storage = await app._runtime.storage()
        assert (await fire(storage, await storage.now(), ["clean"])).jobs == 0
    back = (await start(declaring(make, "* * * * *", missed="once")))["clean"]
    assert not back.orphan
    async with declaring(make, declared=False) as app:
        storage = await app._runtime.storage()
        await fire(storage, await storage.now(), ["clean"])  # if the worker has not done so yet
        assert await app.jobs.count() == 1  # what was missed meanwhile is made up for, by its policy


async def test_two_apps_on_one_store_leave_each_other_alone(make, clock):
    def other():
        app = make()

        @app.schedule("* * * * *", name="others")
        @app.task
        async def count() -> None: ...

        return app

    await start(declaring(make, "* * * * *"))
    both = await start(other())
    both = await start(declaring(make, "* * * * *"))
    assert [(name, schedule.orphan) for name, schedule in both.items()] == [("clean", False), ("others", False)]

    async with other() as here, declaring(make, "* * * * *") as there:
        async with here.worker(tasks=["count"]), there.worker():
            clock.advance(60)
            storage = await there._runtime.storage()
            await fire(storage, await storage.now(), ["clean"])  # the other's tick as well: its worker is there
            for schedule in await there.schedules.list():
                assert (schedule.runs, schedule.orphan) == (1, False)

    clock.advance(60)
    async with declaring(make, "* * * * *") as there:
        storage = await there._runtime.storage()
        await fire(storage, await storage.now(), ["clean"])  # nobody is there who could run the other's job
        clean, others = await there.schedules.list()
        assert (clean.runs, others.runs, others.orphan) == (2, 1, True)
    assert not (await start(other()))["others"].orphan


async def test_an_orphan_is_taken_back_by_a_worker_that_has_been_there(make, clock):
    async with declaring(make, "* * * * *") as app:
        storage = await app._runtime.storage()
        scheduler = Scheduler(storage, app._runtime.declared_schedules(), ["clean"], asyncio.wait_for)  # type: ignore[arg-type]
        await scheduler.begin()
        clock.advance(60)
        await fire(storage, await storage.now(), ["something else"])
        assert (await app.schedules.list())[0].orphan
        await scheduler.step()
        assert 0 < await scheduler.step() < 60, "the next tick is due within the minute"
        (schedule,) = await app.schedules.list()
        assert (schedule.orphan, schedule.runs) == (False, 1)


async def test_code_and_put_under_one_name(make):
    await start(declaring(make))
    async with declaring(make, declared=False) as app:
        await app.schedules.put("clean", "0 9 * * *", app.clean.call(5))
        (put,) = await app.schedules.list()
        assert (put.declared, put.cron) == (False, "0 9 * * *")
    assert (await start(declaring(make, declared=False)))["clean"].orphan is False  # no code is missed
    assert (await start(declaring(make)))["clean"].cron == "0 3 * * *"  # the code's word counts again


async def test_verbs_know_what_is_declared_before_any_worker_does(make, clock):
    async with declaring(make) as app:
        (listed,) = await app.schedules.list()
        assert listed.next_at == NOON + timedelta(hours=15)
        assert await versions(app) == {}
        assert len(await app.schedules.preview("clean", 3)) == 3
        await app.schedules.pause("clean")
        assert await versions(app) == {"clean": 1}
    assert (await start(declaring(make)))["clean"].paused
