"""`app.schedules`: what its verbs do, and what they refuse."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure import InvalidCall, NotFound, QueueFull, Unique
from perdure.schedules.firing import fire
from perdure.testing import drain

from .conftest import NOON

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def add(app):
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    return add


async def looked(app):
    storage = await app._runtime.storage()
    return (await fire(storage, await storage.now(), app.definitions())).jobs


async def test_the_life_of_a_schedule(app, add, clock):
    async with app:
        await app.schedules.put(
            "hourly", "@hourly", add.using(queue="slow", tags=["x"]).call(1), timezone="Asia/Kolkata"
        )
        (info,) = await app.schedules.list()
        assert (info.name, info.cron, info.task, info.timezone) == ("hourly", "@hourly", "add", "Asia/Kolkata")
        assert info.next_at == datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
        half_past = [datetime(2026, 6, 1, hour, 30, tzinfo=UTC) for hour in (12, 13, 14)]
        assert list(await app.schedules.preview("hourly", 3)) == half_past

        assert await looked(app) == 0
        clock.set(half_past[0])
        assert await looked(app) == 1
        (job,) = (await app.jobs.find()).items
        assert (job.queue, job.tags, job.run_at) == ("slow", ("x",), half_past[0])
        assert dict(job.meta) == {"schedule": "hourly", "tick": half_past[0].isoformat()}
        (info,) = await app.schedules.list()
        assert (info.runs, info.last_at, info.next_at) == (1, half_past[0], half_past[1])

        await app.schedules.pause("hourly")
        clock.set(half_past[2])
        assert await looked(app) == 0
        await app.schedules.resume("hourly")
        assert await looked(app) == 0  # what came during a pause was not missed
        assert (await app.schedules.preview("hourly", 1))[0] == half_past[2] + timedelta(hours=1)

        await app.schedules.reschedule("hourly", "*/10 * * * * *")
        clock.advance(10)
        assert await looked(app) == 1
        handle = await app.schedules.run_now("hourly")
        assert await app.jobs.count() == 3
        await app.schedules.remove("hourly")
        assert await app.schedules.list() == ()
        clock.advance(60)
        assert await looked(app) == 0
        assert await app.jobs.get(handle.id) is not None  # jobs stay
        await drain(app)
        assert await handle.result() == 3


async def test_the_same_again_changes_nothing(app, add, clock):
    async with app:
        storage = await app._runtime.storage()
        await app.schedules.put("s", "@hourly", add.call(1), max_runs=3)
        clock.advance(3600)
        await looked(app)
        (before,) = await storage.kv_read("schedule")
        await app.schedules.put("s", "@hourly", add.call(1), max_runs=3)
        assert await storage.kv_read("schedule") == [before]
        clock.advance(1800)
        await app.schedules.put("s", "@hourly", add.call(2), max_runs=3)  # other arguments: its tick and its count stay
        (info,) = await app.schedules.list()
        assert (info.runs, info.next_at) == (1, NOON + timedelta(hours=2))


async def test_writers_of_one_schedule_do_not_undo_each_other(app, add, clock):
    async with app:
        await app.schedules.put("s", "* * * * *", add.call(1), missed="all")
        clock.advance(600)
        await asyncio.gather(
            app.schedules.pause("s"), looked(app), app.schedules.reschedule("s", "* * * * *"), looked(app)
        )
        (info,) = await app.schedules.list()
        assert info.paused
        assert info.runs == await app.jobs.count()


async def test_an_unknown_name_is_named_and_nothing_changes(app, add):
    async with app:
        await app.schedules.put("s", "@hourly", add.call(1))
        before = await app.schedules.list()
        for verb in ("remove", "pause", "resume", "run_now", "preview"):
            with pytest.raises(NotFound, match="there is no schedule 'other'"):
                await getattr(app.schedules, verb)("other")
        with pytest.raises(NotFound, match="there is no schedule 'other'"):
            await app.schedules.reschedule("other", "@daily")
        with pytest.raises(InvalidCall, match="cron 'never'"):
            await app.schedules.reschedule("s", "never")
        assert await app.schedules.list() == before
        assert await app.jobs.count() == 0


async def test_what_only_code_declares_cannot_be_removed(app, add):
    app.schedule("@daily", add.call(1), name="declared")
    async with app:
        with pytest.raises(NotFound, match="'declared' is not on record, only declared in code"):
            await app.schedules.remove("declared")


async def test_a_bounded_queue_refuses_by_hand(app, add):
    async with app:
        await app.queues.configure("small", max_depth=1)
        await app.schedules.put("s", "@hourly", add.using(queue="small").call(1))
        await app.schedules.run_now("s")
        with pytest.raises(QueueFull):
            await app.schedules.run_now("s")


async def test_what_is_refused(app, add):
    good = add.call(1)
    async with app:
        for arguments, options, match in [
            (("", "@daily", good), {}, "schedule name must not be empty"),
            (("a\nb", "@daily", good), {}, "control characters"),
            (("s", "@daily", add), {}, "takes a call"),
            (("s", None, good), {}, "cron is a text"),
            (("s", "@daily", good), {"timezone": "Mars/Base"}, "no time zone 'Mars/Base'"),
            (("s", "@daily", good), {"timezone": None}, "timezone is a name"),
            (("s", "@daily", good), {"start": datetime(2026, 1, 1)}, "has no timezone"),
            (("s", "@daily", good), {"start": NOON, "end": NOON - timedelta(days=1)}, "is before start"),
            (("s", "@daily", good), {"max_runs": 0}, "max_runs must be"),
            (("s", "@daily", good), {"max_runs": True}, "max_runs must be"),
            (("s", "@daily", good), {"missed": "twice"}, "missed='twice'"),
            (("s", "@daily", good), {"overlap": "queue"}, "overlap='queue'"),
            (("s", "@daily", add.using(unique=Unique("k")).call(1)), {"overlap": "skip"}, "unique key"),
            (("s", "0 0 29 2 5#5", add.using(at=NOON).call(1)), {}, "at= cannot recur"),
        ]:
            with pytest.raises(InvalidCall, match=match):
                await app.schedules.put(*arguments, **options)
        for count in (0, 1001, True, "5"):
            with pytest.raises(InvalidCall, match="n must be"):
                await app.schedules.preview("s", count)
        assert await app.schedules.list() == ()


def test_the_blocking_forms(app, add):
    app.schedules.sync.put("s", "@daily", add.call(1))
    assert [info.name for info in app.schedules.sync.list()] == ["s"]
    assert len(app.schedules.sync.preview("s")) == 5
    assert app.schedules.sync.run_now("s").id
    app.schedules.sync.remove("s")
