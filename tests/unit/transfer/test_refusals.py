"""What stands in the way of a move, and that nothing is changed then."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Succeeded, decide
from perdure.errors import StoreError
from perdure.storage.contract import Claim, QueueSettings, Want, WorkerRow
from perdure.testing.conformance.tools import enqueue_and_claim, job
from perdure.transfer import quiesce
from perdure.transfer.transfer import look_ahead, move

from .conftest import silent


@asynccontextmanager
async def two_stores(house):
    async with house.open(house.url("sqlite")) as source, house.open(f"sqlite:///{house.folder}/there.db") as target:
        await source.enqueue([job(queue="mail")])
        yield source, target


async def refused(house, source, target, match, **options):
    before = await house.contents(source), await house.paused(source)
    with pytest.raises(StoreError, match=match):
        await move(source, target, silent, **options)
    assert (await house.contents(source), await house.paused(source)) == before


async def test_a_target_with_jobs_of_its_own(house):
    async with two_stores(house) as (source, target):
        foreign = job()
        await target.enqueue([foreign])
        await refused(house, source, target, f"jobs of its own, such as {foreign.id}")


async def test_a_running_job(house):
    async with two_stores(house) as (source, target):
        await enqueue_and_claim(source)
        await refused(house, source, target, "the source is in use: 2 running jobs; .*--wait")


@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_live_worker(house, which):
    async with two_stores(house) as (source, target):
        busy = source if which == "source" else target
        await busy.heartbeat(WorkerRow("host-1", 1, 1, 0, "{}"))
        await refused(house, source, target, rf"the {which} is in use: a live worker \(host-1\)")
        house.clock.advance(61)
        await move(source, target, silent)


async def test_one_store_under_two_names(house):
    async with two_stores(house) as (source, _):
        await refused(house, source, source, "the same store")
        assert await source.workers(60 * SECOND) == []


async def test_waiting_in_vain(house, monkeypatch):
    async with two_stores(house) as (source, target):
        monkeypatch.setattr(quiesce, "LOOK_AGAIN", 0.01)
        await enqueue_and_claim(source, queue="other")
        await source.enqueue([job(queue="third")])
        await source.pause("third", True)
        await refused(house, source, target, "a running job|2 running jobs", wait=0.05)
        assert await house.paused(source) == {"third"}


async def test_waiting_for_the_last_to_end(house, monkeypatch):
    async with two_stores(house) as (source, target):
        (held,) = await source.claim(Claim("w", 7, (Want(1),)))
        await source.heartbeat(WorkerRow("w", 1, 1, 1, "{}"))
        await source.enqueue([job(queue="mail")])

        async def end(seconds):
            """Instead of a pause: what the worker does meanwhile."""
            assert await house.paused(source) == {"mail"}, "nothing new is begun"
            assert await source.claim(Claim("w", 8, (Want(9),))) == []
            await source.apply([decide(held, Succeeded("1"))])
            await source.remove_worker("w")

        monkeypatch.setattr(asyncio, "sleep", end)
        moved = await move(source, target, silent, wait=60)
        assert moved.counted[1].target.counts == {("succeeded", "mail"): 1, ("ready", "mail"): 1}
        assert await house.contents(source) == await house.contents(target)


async def test_a_source_that_changes_meanwhile(house):
    """What comes behind the position that was read is seen by the count."""
    async with two_stores(house) as (source, target):
        real = target.restore_keys

        async def restore_keys(keys):
            await source.enqueue([job()])
            await real(keys)

        target.restore_keys = restore_keys
        await source.enqueue([job(unique_key="k", unique_scope="any")])
        differ = r"source and target differ: 3 jobs with checksum .* 2 with .* promote again"
        with pytest.raises(StoreError, match=differ):
            await move(source, target, silent)
        assert await house.paused(source) == set()
        del target.restore_keys
        moved = await move(source, target, silent)
        assert moved.already_there == 2
        assert moved.counted[1].target.total == 3


async def test_what_the_target_has_beside_jobs_stays(house):
    async with two_stores(house) as (source, target):
        await target.configure(QueueSettings("own", max_depth=7))
        await target.pause("mail", True)
        await source.configure(QueueSettings("mail", max_depth=3))
        moved = await move(source, target, silent)
        settings = {row.settings.name: row.settings for row in await target.queues()}
        assert settings == {"own": QueueSettings("own", max_depth=7), "mail": QueueSettings("mail", True, 3)}
        assert moved.paused == ("mail",)


async def test_looking_ahead_writes_nothing(house):
    async with two_stores(house) as (source, target):
        await enqueue_and_claim(source, queue="other")
        outlook = await look_ahead(source, target, silent)
        assert [(name, counted.total) for name, counted in outlook.counted] == [
            ("queues", 0),
            ("jobs", 2),
            ("kept keys", 0),
            ("kv", 0),
        ]
        assert outlook.hindrances == ("the source is in use: 2 running jobs",)
        assert await house.contents(target) == ([], {}, [], [])
        assert await house.paused(source) == set()


async def test_large_jobs_go_in_small_pieces(house, monkeypatch):
    async with two_stores(house) as (source, target):
        await source.enqueue([job(payload=f'"{"x" * 1_000_000}"') for _ in range(30)])
        sizes = []
        real = target.restore

        async def restore(jobs):
            sizes.append(len(jobs))
            await real(jobs)

        target.restore = restore
        await move(source, target, silent)
        assert sum(sizes) == 31
        assert max(sizes) <= 5
