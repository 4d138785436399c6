"""Places of waiting jobs: a claim may have heard of some before its transaction began, and they may be others' by then."""

from perdure import State
from perdure.core.clock import SECOND
from perdure.core.lifecycle import Snoozed, decide
from perdure.storage.contract import Claim, Want

from .helpers import claim, fresh, job, store_at


async def place_of(store, id):
    return await store._in_use().database["perdure_places"].find_one({"_id": id})


async def learn_the_lane(store):
    """Claim once, so that the next claim asks for the best places of the lane along with its candidates."""
    await store.enqueue([job()])
    assert len(await store.claim(claim())) == 1


def meanwhile(store, happens):
    """Let something happen between the next look of a claim and its transaction."""
    read = store._exchanges._read

    async def look(steps):
        store._exchanges._read = read
        seen = await read(steps)
        await happens()
        return seen

    store._exchanges._read = look


async def test_a_job_that_was_snoozed_meanwhile_keeps_its_new_place():
    url = fresh()
    async with store_at(url) as here, store_at(url) as elsewhere:
        await learn_the_lane(here)
        waiting = job()
        await here.enqueue([waiting])

        async def snoozed():
            (record,) = await elsewhere.claim(claim(worker="w2"))
            await elsewhere.apply([decide(record, Snoozed(delay=60 * SECOND))])

        meanwhile(here, snoozed)
        assert await here.claim(claim()) == []
        (record,) = await here.get([waiting.id])
        assert record.state is State.SCHEDULED
        assert (await place_of(here, waiting.id))["place"] == "due"


async def test_the_next_best_is_taken_when_the_best_is_gone():
    url = fresh()
    async with store_at(url) as here, store_at(url) as elsewhere:
        await learn_the_lane(here)
        jobs = [job() for _ in range(3)]
        await here.enqueue(jobs)

        async def taken():
            assert [record.id for record in await elsewhere.claim(claim(2, "w2"))] == [jobs[0].id, jobs[1].id]

        meanwhile(here, taken)
        assert [record.id for record in await here.claim(claim(2))] == [jobs[2].id]
        assert await place_of(here, jobs[2].id) is None


async def test_a_lane_that_comes_up_is_not_missed():
    async with store_at() as store:
        await learn_the_lane(store)
        plain, better = job(), job(queue="other", priority=5)
        await store.enqueue([plain, better])
        assert [record.id for record in await store.claim(claim(2))] == [better.id, plain.id]
        await store.enqueue([plain := job(), other := job(queue="other")])
        only_other = Claim("w1", 99, (Want(2, queues=("other",)),))
        assert [record.id for record in (await store.exchange([], only_other)).claimed] == [other.id]
        assert [record.id for record in await store.claim(claim(2))] == [plain.id]
