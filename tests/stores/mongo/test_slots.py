"""What runs under limits is a sum over few documents, whatever became of the jobs."""

from perdure.core.lifecycle import success_of
from perdure.storage.contract import JobDump
from perdure.storage.mongo.limits import running_counts

from .helpers import claim, job, store_at


def limited(most, **fields):
    return job(limits=f'[["k",{most},null,null]]', **fields)


def ended(records):
    return [success_of(record, None, None) for record in records]


async def noted(store):
    """What each document says, the smallest first."""
    found = store._in_use().database["perdure_slots"].find({})
    return sorted([slot["jobs"] async for slot in found])


async def test_an_exchange_that_takes_as_many_as_it_gives_up_notes_nothing():
    async with store_at() as store:
        await store.enqueue([limited(9) for _ in range(12)])
        first = await store.claim(claim(4, limited=True))
        before = await noted(store)
        answer = await store.exchange(ended(first), claim(4, limited=True))
    assert before == [4]
    assert len(answer.claimed) == 4


async def test_what_is_given_up_in_the_same_exchange_makes_room():
    async with store_at() as store:
        await store.enqueue([limited(3) for _ in range(12)])
        first = await store.claim(claim(9, limited=True))
        answer = await store.exchange(ended(first[:2]), claim(9, limited=True))
        nothing = await store.claim(claim(9, limited=True))
        assert sum(await noted(store)) == 3
    assert [len(first), len(answer.claimed), len(nothing)] == [3, 2, 0]


async def test_many_documents_of_a_key_are_put_together(monkeypatch):
    monkeypatch.setattr(running_counts, "MANY", 5)
    async with store_at() as store:
        await store.enqueue([limited(30) for _ in range(40)])
        for _ in range(20):
            (record,) = await store.claim(claim(1, limited=True))
        await store.apply(ended([record]))
        assert len(await noted(store)) <= running_counts.MANY + 2
        assert sum(await noted(store)) == 19
        assert len(await store.claim(claim(99, limited=True))) == 11


async def test_more_documents_than_are_known_at_a_glance_are_asked_for(monkeypatch):
    async with store_at() as store:
        slot = {"keys": ["other"], "limits": '[["other",1,null,null]]', "jobs": 1}
        await store._in_use().database["perdure_slots"].insert_many([{"_id": str(n), **slot} for n in range(99)])
        await store.enqueue([limited(2) for _ in range(4)])
        assert len(await store.claim(claim(1, limited=True))) == 1
        assert len(await store.claim(claim(9, limited=True))) == 1


async def test_documents_that_make_nothing_together_are_removed():
    async with store_at() as store:
        await store.enqueue([limited(9) for _ in range(3)])
        await store.apply(ended(await store.claim(claim(3, limited=True))))
        before = await noted(store)
        await store.prune(100)
        after = await noted(store)
    assert before == [-3, 3]
    assert after == []


async def test_a_job_that_is_replaced_gives_up_its_room():
    async with store_at() as store:
        await store.enqueue([limited(1), limited(1)])
        (record,) = await store.claim(claim(9, limited=True))
        (change,) = ended([record])
        waiting = limited(1, id=record.id)
        async with store_at() as other:
            await other.enqueue([waiting])
            (carried,) = [each for each in await other.export(None, 9) if each.record.id == record.id]
        await store.restore([JobDump(carried.record)])
        assert sum(await noted(store)) == 0
        assert len(await store.claim(claim(9, limited=True))) == 1
        assert (await store.apply([change]))[0].refusal is not None


async def test_a_held_job_that_comes_from_elsewhere_takes_up_room():
    async with store_at() as store, store_at() as other:
        await store.enqueue([limited(1)])
        await other.enqueue([limited(1)])
        await store.claim(claim(9, limited=True))
        await other.restore(await store.export(None, 9))
        assert await noted(other) == [1]
        assert await other.claim(claim(9, limited=True)) == []
