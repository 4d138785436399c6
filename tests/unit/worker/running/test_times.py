"""When jobs become due, on every kind of store: far instants, released followers, rates in a drained test."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from perdure import InvalidCall, Limit, Perdure, Retry, Snooze
from perdure.testing import ManualClock, drain, drain_app
from tests.support.addresses import OF_EACH_KIND, address


@pytest.fixture(params=["memory", "sqlite", *OF_EACH_KIND])
def url(request, tmp_path):
    return address(request.param, tmp_path)


async def test_instants_beyond_the_year_2180_are_refused_everywhere(url):
    app = Perdure(url, durability="relaxed")

    @app.task
    async def note() -> None: ...

    latest, beyond = datetime(2180, 12, 31, tzinfo=UTC), datetime(2181, 1, 1, tzinfo=UTC)
    async with app:
        job = await (await note.using(at=latest).enqueue()).refresh()
        assert job.run_at == latest
        with pytest.raises(InvalidCall, match="at lies beyond the year 2180"):
            await note.using(at=beyond).enqueue()
        for outcome in (Retry, Snooze):
            with pytest.raises(InvalidCall, match=f"{outcome.__name__} at lies beyond the year 2180"):
                outcome(at=beyond)


async def test_jobs_under_a_rate_are_drained_by_moves_of_the_clock(url):
    clock = ManualClock()
    app = Perdure(url, durability="relaxed", clock=clock)
    ran = []

    @app.task(limit=Limit(rate="2/10s"))
    async def note(number: int) -> None:
        ran.append(number)

    async with app:
        for number in range(5):
            await note.enqueue(number)
        for seen in (2, 4, 5):
            await drain(app, timeout=20)
            assert len(ran) == seen
            clock.advance(10)


async def test_a_job_that_comes_as_the_worker_stops_is_drained_too(url, monkeypatch):
    """The worker claims it after the last look, and hands it back when it is stopped."""
    app = Perdure(url, durability="relaxed")
    ran = []

    @app.task
    async def note(number: int) -> None:
        ran.append(number)

    look = drain_app._wait_until_idle

    async def look_and_enqueue(*asked):
        await look(*asked)
        if len(ran) == 1:
            await note.enqueue(2)

    monkeypatch.setattr(drain_app, "_wait_until_idle", look_and_enqueue)
    async with app:
        await note.enqueue(1)
        await drain(app, timeout=20)
        assert ran == [1, 2]


async def test_a_drain_asks_a_bounded_number_of_questions(url, monkeypatch):
    """However many tasks and queues the app has."""
    app = Perdure(url, durability="relaxed")

    @app.task(name="last")
    async def last() -> None: ...

    for number in range(40):
        app.task(name=f"task {number}")(_nothing)
    async with app:
        storage = await app._runtime.storage()
        asked = []
        find = storage.find

        async def counted(*arguments):
            asked.append(arguments)
            return await find(*arguments)

        monkeypatch.setattr(storage, "find", counted)
        await last.using(queue="a").enqueue()
        await app.queues.pause("b")
        for _ in range(20):
            await last.using(queue="b").enqueue()
        await drain(app, timeout=20)
        assert len(asked) < 8


async def _nothing() -> None: ...


async def test_a_declared_schedule_fires_after_one_move_of_the_clock(url):
    clock = ManualClock()
    app = Perdure(url, durability="relaxed", clock=clock)
    ran = []

    @app.schedule("0 * * * *")
    @app.task
    async def tick() -> None:
        ran.append(clock.now())

    async with app:
        clock.advance(3600)
        await drain(app, timeout=20)
        assert len(ran) == 1
        clock.advance(3600)
        await drain(app, timeout=20)
        assert len(ran) == 2
