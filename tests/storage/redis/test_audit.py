"""Rows and indexes that do not agree: orphans are put back, and what an index wrongly names is passed over."""

from perdure.job import unreadable_fields
from perdure.lifecycle import Succeeded, decide
from perdure.storage.contract import Filter

from .helpers import claim, client, jobs, keys, opened


async def test_orphans_are_put_back(url, caplog):
    async with opened(url) as store:
        ready, scheduled, blocked = jobs(3) + jobs(1), jobs(1, delay=3_600_000_000), jobs(1, waits=1)
        await store.enqueue([*ready, *scheduled, *blocked])
        (held,) = await store.claim(claim(1))
        (ended,) = await store.claim(claim(1))
        await store.apply([decide(ended, Succeeded())])
        before = await _seen(store)
        with client(url) as raw:
            raw.delete(
                *(keys(url)[name] for name in ("lanes", "schedule", "aside", "leases", "created", "ended", "prunable"))
            )
        assert await store.claim(claim(9)) == []
        await store.prune(100)
        assert "stood in no index and were put back" in caplog.text
        assert await _seen(store) == before
        assert len(await store.claim(claim(9))) == 2
        assert (await store.find(Filter(), 99, None))[1] is None
        assert len((await store.find(Filter(), 99, None))[0]) == 6
        assert len(await store.queues()) == 1
        caplog.clear()
        await store.prune(100)
        assert "put back" not in caplog.text
        assert held.id in {record.id for record in await store.holding("w1", held.stamp)}


async def _seen(store):
    return sorted((record.id, record.state) for record in (await store.find(Filter(), 99, None))[0])


async def test_an_index_that_names_jobs_which_are_gone(url):
    async with opened(url) as store:
        gone, here = jobs(1)[0], jobs(1)[0]
        await store.enqueue([gone, here])
        with client(url) as raw:
            raw.hdel(keys(url)["rows"], bytes.fromhex(gone.id.replace("-", "")))
        claimed = await store.claim(claim(9))
        assert [record.id for record in claimed] == [here.id]
        with client(url) as raw:
            assert raw.zcard(keys(url)["lanes"]) == 0


async def test_a_job_that_cannot_be_read_does_not_hide_the_others(url):
    async with opened(url) as store:
        broken, here = jobs(2)
        await store.enqueue([broken, here])
        with client(url) as raw:
            raw.hset(keys(url)["jobs"], bytes.fromhex(broken.id.replace("-", "")), b"no MessagePack")
        found, _ = await store.find(Filter(), 9, None)
        assert {record.id: bool(unreadable_fields(record.reason)) for record in found} == {
            broken.id: True,
            here.id: False,
        }
        assert [record.id for record in await store.claim(claim(9))] == [here.id]
