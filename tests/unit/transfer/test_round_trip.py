"""From store to store and back: what arrives is what left."""

from itertools import pairwise

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Filter
from perdure.testing.conformance.tools import enqueue_and_claim, job
from perdure.transfer.transfer import move
from tests.support.addresses import ON_SERVERS

from .conftest import silent

ROUND = [name for name in ("postgres", "redis", "mongo") if name in ON_SERVERS]


async def test_round_trip(house):
    """SQLite → PostgreSQL → Redis → MongoDB → SQLite."""
    urls = [house.url(name) for name in ("sqlite", *ROUND)]
    urls.append(f"sqlite:///{house.folder}/home.db")
    async with house.open(urls[0]) as first:
        await house.fill(first)
        before = await house.contents(first)
        paused = await house.paused(first)
    records = [each.record for each in before[0]]
    assert {record.state for record in records} == set(State)
    assert any(record.hidden for record in records)
    assert any(each.lines for each in before[0])
    assert any(each.waits_for for each in before[0])
    assert any(each.kept_for for each in before[0])
    assert any(record.parked for record in records)
    assert any(record.rank != record.run_at for record in records)
    assert len(before[1]) == 2
    assert len(before[3]) == 3
    for here, there in pairwise(urls):
        async with house.open(here) as source, house.open(there) as target:
            moved = await move(source, target, silent)
            assert all(each.equal for each in moved.counted)
            assert moved.counted[1].target.total == len(records)
            assert await house.contents(target) == before
            assert await house.paused(target) == paused
            assert await house.contents(source) == before
            assert await house.paused(source) == {row.settings.name for row in await source.queues()}


@pytest.mark.parametrize("name", [*ON_SERVERS, "sqlite"])
async def test_into_and_out_of_each_store(house, name):
    async with house.open(house.url("sqlite")) as first, house.open(house.url(name)) as there:
        await house.fill(first)
        before = await house.contents(first)
        await move(first, there, silent)
        async with house.open(f"sqlite:///{house.folder}/home.db") as home:
            await move(there, home, silent)
            assert await house.contents(home) == before


@pytest.mark.parametrize("name", [*ON_SERVERS, "sqlite"])
async def test_what_was_still_to_follow_has_followed(house, name):
    """A parent ended, and whoever was to let its many children go has died."""
    async with house.open(house.url("sqlite")) as source, house.open(house.url(name)) as target:
        parent = await enqueue_and_claim(source)
        children = [job(after=f'["{parent.id}"]', waits=1) for _ in range(source.chunk + 1)]
        await source.enqueue(children[1:])
        await source.enqueue(children[:1])
        assert (await source.exchange([decide(parent, Succeeded())])).unresolved
        await move(source, target, silent)
        assert await target.count(Filter(states=(State.READY,))) == len(children)
