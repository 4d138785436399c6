"""Firing on real stores: every tick once, never early, whoever looks and however they end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Perdure, State
from perdure.core.clock import SECOND, instant_of
from perdure.schedules.cron import cron_of
from perdure.schedules.firing import fire
from perdure.schedules.reconcile import all_rows
from perdure.schedules.scheduler import Scheduler
from perdure.storage.contract import Filter, KvWrite
from tests.support.waiting import stays

from .conftest import NOON, address

DAY = 86_400
TASKS = ("note",)


def task_of(app):
    @app.task
    async def note(text: str = "") -> str:
        return text

    return note


async def fired(app):
    """The ticks that have a job, by schedule, each as often as it has one; jobs made before their tick are mistakes."""
    storage = await app._runtime.storage()
    found: dict[str, Counter] = {}
    cursor = None
    while True:
        records, cursor = await storage.find(Filter(task="note"), 500, cursor)
        for record in records:
            meta = json.loads(record.meta)
            tick = instant_of(datetime.fromisoformat(meta["tick"]))
            assert record.created_at >= tick, "a job before its tick"
            found.setdefault(meta["schedule"], Counter())[tick] += 1
        if cursor is None:
            return found


def expected(cron, begin, end, zone="UTC"):
    ticks, instant = [], cron_of(cron, zone).after(instant_of(begin))
    while instant is not None and instant <= instant_of(end):
        ticks.append(instant)
        instant = cron_of(cron, zone).after(instant)
    return Counter(ticks)


TEN_YEARS = {
    "berlin": ("30 2 * * *", "Europe/Berlin"),
    "howe": ("0 45 1 * * SUN", "Australia/Lord_Howe"),
    "leap": ("0 0 29 2 *", "UTC"),
    "monthly": ("@monthly", "America/Santiago"),
}


@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")  # pymongo's, ended while it connects
async def test_ten_years_and_ten_workers(app, store, clock, tmp_path):
    """Ten workers of an app, each with a handle of its own; some look at the same time, some are ended while they do."""
    draw = random.Random(5)
    note = task_of(app)
    async with app:
        for name, (cron, zone) in TEN_YEARS.items():
            await app.schedules.put(name, cron, note.call(name), timezone=zone, missed="all")
        workers = [app._runtime.loops._opener(migrate=False)() for _ in range(10)]
        for worker in workers:
            await worker.open()
        end = NOON + timedelta(days=3653)
        while clock.now() < end:
            clock.advance(min(draw.uniform(1, 80) * DAY, (end - clock.now()).total_seconds()))
            looking = [asyncio.create_task(_look(worker)) for worker in draw.sample(workers, draw.randint(2, 4))]
            for task in looking[1:]:
                if draw.random() < 0.3:
                    asyncio.get_running_loop().call_later(draw.uniform(0, 0.004), task.cancel)
            await asyncio.gather(*looking, return_exceptions=True)
        gc.collect()
        await _look(workers[0])
        found = await fired(app)
        for name, (cron, zone) in TEN_YEARS.items():
            assert found[name] == expected(cron, NOON, end, zone), name
        for worker in workers:
            await worker.close()


async def _look(storage):
    while (await fire(storage, await storage.now(), TASKS)).again:
        pass


async def test_two_look_at_the_same_time(app, clock):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        for number in range(40):
            await app.schedules.put(f"s{number}", "* * * * *", note.call(), missed="all")
        clock.advance(150)
        await asyncio.gather(*(_look(storage) for _ in range(4)))
        found = await fired(app)
        assert len(found) == 40
        assert all(ticks == expected("* * * * *", NOON, clock.now()) for ticks in found.values())
        assert {schedule.runs for schedule in await app.schedules.list()} == {2}


async def test_a_full_queue_holds_up_no_other(app, clock, caplog):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        await app.queues.configure("small", max_depth=2)
        for number in range(4):
            await app.schedules.put(f"small{number}", "* * * * *", note.using(queue="small").call())
        await app.schedules.put("other", "* * * * *", note.call())
        clock.advance(60)
        assert (await fire(storage, await storage.now(), TASKS)).jobs == 3
        assert "queue small is full, ticks wait for room" in caplog.text
        await app.jobs.cancel(*(job.id for job in (await app.jobs.find(queue="small")).items))
        assert (await fire(storage, await storage.now(), TASKS)).jobs == 0  # they are left alone for five seconds
        clock.advance(5)
        assert (await fire(storage, await storage.now(), TASKS)).jobs == 2
        found = await fired(app)
        assert len(found) == 5
        assert all(ticks == expected("* * * * *", NOON, clock.now()) for ticks in found.values())


async def test_no_overlap_with_itself(app, clock):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        await app.schedules.put("alone", "* * * * *", note.call(), overlap="skip", max_runs=2)
        await app.schedules.put("crowd", "* * * * *", note.call(), overlap="allow")
        for _ in range(3):
            clock.advance(60)
            await _look(storage)
        alone, crowd = await app.schedules.list()
        assert (alone.runs, alone.skipped, crowd.runs, crowd.skipped) == (1, 2, 3, 0)
        (job,) = [job for job in (await app.jobs.find()).items if job.meta["schedule"] == "alone"]
        again = await app.schedules.run_now("alone")
        assert (again.id, again.duplicate) == (job.id, True)
        await app.jobs.cancel(job.id)
        by_hand = await app.schedules.run_now("alone")
        assert not by_hand.duplicate
        clock.advance(60)
        await _look(storage)  # the job that was made by hand is at work
        assert (await app.schedules.list())[0].skipped == 3
        await app.jobs.cancel(by_hand.id)
        clock.advance(60)
        await _look(storage)
        alone, _ = await app.schedules.list()
        assert (alone.runs, alone.next_at) == (2, None)


async def test_a_clock_that_went_back_fires_nothing_twice_and_is_told(app, clock, caplog):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        await app.schedules.put("hourly", "@hourly", note.call())
        clock.advance(DAY)
        await _look(storage)
        clock.advance(-3 * 3600)
        scheduler = Scheduler(storage, {}, TASKS, asyncio.wait_for)  # type: ignore[arg-type]
        with caplog.at_level(logging.ERROR):
            await scheduler.step()
            await scheduler.step()
        assert caplog.text.count("more than an hour ahead of the store's clock: hourly") == 1
        for _ in range(4):
            clock.advance(3600)
            await scheduler.step()
            await _look(storage)
        ticks = (await fired(app))["hourly"]
        assert set(ticks.values()) == {1}
        assert max(ticks) == instant_of(NOON + timedelta(hours=25))
        clock.advance(-10 * 3600)
        await app.schedules.pause("hourly")
        await app.schedules.resume("hourly")
        assert (await app.schedules.list())[0].next_at == clock.now() + timedelta(hours=1)


async def test_a_row_that_cannot_be_read_or_fired_holds_up_no_other(app, clock, caplog):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        await app.schedules.put("good", "* * * * *", note.call())
        (row,) = [row async for row in all_rows(storage)]
        elsewhere = json.loads(row.text) | {"timezone": "Mars/Base"}
        await storage.kv_write(
            [
                KvWrite("schedule", "a newer form", '{"cron": 5}', due_at=1),
                KvWrite("schedule", "elsewhere", json.dumps(elsewhere), due_at=1),
            ]
        )
        clock.advance(60)
        assert (await fire(storage, await storage.now(), TASKS)).jobs == 1
        assert "schedule a newer form cannot fire here" in caplog.text
        assert "schedule elsewhere cannot fire here: InvalidCall: there is no time zone 'Mars/Base'" in caplog.text
        rows = {row.name: row async for row in all_rows(storage)}
        assert rows["a newer form"].text == '{"cron": 5}'  # left as it is
        assert rows["elsewhere"].due_at == instant_of(clock.now()) + 30 * SECOND
        listed = [(schedule.name, schedule.unreadable) for schedule in await app.schedules.list()]
        assert listed == [("a newer form", True), ("elsewhere", False), ("good", False)]


async def test_more_schedules_than_one_answer_holds(app, clock):
    note = task_of(app)
    async with app:
        storage = await app._runtime.storage()
        await app.schedules.put("s", "* * * * *", note.call())
        (row,) = [row async for row in all_rows(storage)]
        many = storage.chunk + 50
        writes = [KvWrite("schedule", f"s{number:04}", row.text, 0, row.due_at) for number in range(many)]
        for start in range(0, many, storage.chunk):
            await storage.kv_write(writes[start : start + storage.chunk])
        clock.advance(61)
        scheduler = Scheduler(storage, {}, TASKS, asyncio.wait_for)  # type: ignore[arg-type]
        assert await scheduler.step() == 0
        assert 0 < await scheduler.step() <= 1.1  # from one full second to the next
        assert await app.jobs.count(state=State.READY) == many + 1
        assert len(await app.schedules.list()) == many + 1


async def test_a_worker_fires_in_time_and_asks_little(store, tmp_path):
    """A real worker on a real clock: a tick is run within the second, and a worker without schedules hardly asks."""
    app = Perdure(address(store, tmp_path))
    ran: asyncio.Queue[datetime] = asyncio.Queue()

    @app.task
    async def note() -> None:
        ran.put_nowait(datetime.now(UTC))

    async with app:
        storage = await app._runtime.storage()
        asked = Counter()
        original = storage.kv_read

        async def counted(kind, names=None, **options):
            asked[kind] += 1
            return await original(kind, names, **options)

        storage.kv_read = counted  # type: ignore[method-assign]
        async with app.worker():
            # when it starts, once to look around, and once when it listens for signals
            await stays(lambda: asked["schedule"] <= 3, 0.3)
            await app.schedules.put("secondly", "* * * * * *", note.call(), max_runs=2)
            one = await asyncio.wait_for(ran.get(), 30)
            two = await asyncio.wait_for(ran.get(), 30)
            assert two - one < timedelta(seconds=15)
        ticks = sorted(job.meta["tick"] for job in (await app.jobs.find()).items)
        assert len(ticks) == len(set(ticks)) == 2
        (schedule,) = await app.schedules.list()
        assert (schedule.runs, schedule.next_at) == (2, None)
