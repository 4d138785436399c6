"""Rows and indexes that do not agree: orphans are put back, and what an index wrongly names is passed over."""

import pytest

from perdure.core.lifecycle import Succeeded, decide
from perdure.core.record import unreadable_fields
from perdure.storage.contract import Filter, KvWrite

from .helpers import claim, client, jobs, keys, opened

LONG_ENOUGH = 3_600_000_000


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
        assert held.id in {record.id for record in await store.recover_claim("w1", held.stamp)}


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


@pytest.mark.parametrize("lost", ["everything", "the key is of another type", "a name", "an instant", "a job"])
async def test_kv_entries_are_found_again_when_their_index_is_lost(url, lost):
    async with opened(url) as store:
        (owner,) = jobs(1)
        await store.enqueue([owner])
        texts = [KvWrite("kind", name, "1", due_at=5, job=owner.id) for name in ("a", "b")]
        await store.kv_write(texts)
        with client(url) as raw:
            key = keys(url)["kv_index"]
            first = {"a name": b"n", "an instant": b"d", "a job": b"j"}.get(lost)
            if first is not None:
                raw.zrem(key, *(member for member in raw.zrange(key, 0, -1) if member.startswith(first)))
            else:
                raw.delete(key)
            if lost == "the key is of another type":
                raw.set(key, "foreign")
        await store.lapsed(9, LONG_ENOUGH)
        for _ in range(3):
            await store.inspect(100)
        looks = [
            await store.kv_read("kind"),
            await store.kv_read("kind", due=True),
            await store.kv_read("kind", job=owner.id),
        ]
        assert [[row.name for row in found] for found in looks] == [["a", "b"]] * 3


async def test_one_inspection_looks_at_some_thousand_rows(url):
    async with opened(url) as store:
        for _ in range(5):
            await store.enqueue(jobs(500))
        with client(url) as raw:
            raw.delete(keys(url)["lanes"], keys(url)["heads"])
        await store.inspect(100)
        with client(url) as raw:
            assert raw.zcard(keys(url)["lanes"]) == 2_500
