"""Listings of a long history."""

import pytest

from perdure.core.job import State
from perdure.storage.contract import Filter

from .helpers import claim, job, store_at


@pytest.fixture
def short_slices(monkeypatch):
    monkeypatch.setattr("perdure.storage.sqlite.reading.listing.FIRST_SLICE", 3)
    monkeypatch.setattr("perdure.storage.sqlite.reading.listing.LAST_SLICE", 7)


@pytest.mark.usefixtures("short_slices")
async def test_pages_over_many_slices(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        jobs = [job(payload=f'"{number % 10}"') for number in range(100)]
        for begin in range(0, 100, 9):
            await store.enqueue(jobs[begin : begin + 9])
        for filter, expected in [
            (Filter(), jobs),
            (Filter(text="7"), jobs[7::10]),
            (Filter(text="none"), []),
            (Filter(task="t"), jobs),
        ]:
            expected = [one.id for one in reversed(expected)]
            for limit in (1, 4, 10, 99, 100, 101):
                seen, cursor = [], None
                while True:
                    page, cursor = await store.find(filter, limit, cursor)
                    assert len(page) <= limit
                    seen += [record.id for record in page]
                    if cursor is None:
                        break
                assert seen == expected


@pytest.mark.parametrize("few", [True, False])
async def test_live_jobs_are_found_whether_few_or_many(tmp_path, monkeypatch, few):
    if not few:
        monkeypatch.setattr("perdure.storage.sqlite.reading.listing.FEW", 1)
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job(), job(), job(delay=10**9), job(waits=1)])
        await store.exchange((), claim(1))
        expected = {State.RUNNING: 1, State.READY: 1, State.SCHEDULED: 1, State.BLOCKED: 1, State.DEAD: 0}
        for state, number in expected.items():
            page, _ = await store.find(Filter(states=(state,)), 10, None)
            assert [record.state for record in page] == [state] * number
            assert await store.count(Filter(states=(state,))) == number
        page, _ = await store.find(Filter(states=(State.READY, State.SUCCEEDED)), 10, None)
        assert len(page) == 1
        assert await store.find(Filter(states=()), 10, None) == ([], None)
