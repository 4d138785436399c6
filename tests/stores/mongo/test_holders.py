"""Who holds a unique key: a note beside the jobs, which always says the same as they do."""

import asyncio

import pytest
from pymongo import MongoClient

from perdure.core.lifecycle import Cancelled, HandedBack, Succeeded, decide
from perdure.testing.conformance.tools import ids

from .helpers import claim, database_of, fresh, job, store_at


def agreeing(url):
    """The holders by key, as the notes tell them, after a look whether the jobs say the same."""
    with MongoClient(url) as client:
        database = database_of(client, url)
        notes = {note["_id"]: note["job"] for note in database.perdure_notes.find({"_id": {"$regex": "^holder/"}})}
        held = {f"holder/{each['unique_key']}": each["_id"] for each in database.perdure_jobs.find({"holds_key": True})}
    assert notes == held
    return notes


@pytest.mark.parametrize("scope", ["waiting", "active"])
async def test_many_at_once_have_one_winner(scope):
    url = fresh()
    async with store_at(url) as one, store_at(url) as other:
        asked = [
            (store, [job(unique_key=f"key {number}", unique_scope=scope)])
            for number in range(5)
            for store in (one, other, one, other)
        ]
        placed = [each for (each,) in await asyncio.gather(*(store.enqueue(new) for store, new in asked))]
        assert len({each.id for each in placed}) == 5
        assert sum(not each.duplicate for each in placed) == 5
        assert set(agreeing(url).values()) == {each.id for each in placed}


async def test_a_key_goes_where_its_job_goes():
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([job(unique_key="w", unique_scope="waiting")])
        await store.enqueue([job(unique_key="a", unique_scope="active")])
        waiting, active = await store.claim(claim(2))
        assert set(agreeing(url)) == {"holder/a"}
        await store.apply([decide(waiting, HandedBack()), decide(active, Succeeded())])
        assert not agreeing(url)
        again = [job(unique_key="a", unique_scope="active"), job(unique_key="w", unique_scope="waiting")]
        await store.enqueue(again)
        assert set(agreeing(url).values()) == set(ids(again))
        await store.apply([decide(record, Cancelled()) for record in await store.get(ids(again)) if record is not None])
        assert not agreeing(url)


async def test_jobs_that_are_carried_here_bring_their_keys():
    url = fresh()
    async with store_at() as there, store_at(url) as here:
        await there.enqueue([job(unique_key="k", unique_scope="active")])
        carried = await there.export(None, 10)
        await here.restore(carried)
        await here.restore(carried)  # in place of themselves
        assert agreeing(url) == {"holder/k": carried[0].record.id}
