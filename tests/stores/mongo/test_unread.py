"""A job that was claimed here is ended without being read again. What others have made of it meanwhile still counts."""

from perdure import State
from perdure.core.clock import SECOND
from perdure.core.job import WAITING
from perdure.core.lifecycle import Cancelled, Snoozed, decide, success_of
from perdure.storage.contract import ACCEPTED, REFUSED, REPEATED, Refusal

from .helpers import claim, fresh, job, store_at


async def test_one_that_was_cancelled_elsewhere_is_refused_alone():
    url = fresh()
    async with store_at(url) as here, store_at(url) as elsewhere:
        await here.enqueue([job() for _ in range(3)])
        records = await here.claim(claim(3))
        (seen,) = await elsewhere.get([records[1].id])
        await elsewhere.apply([decide(seen, Cancelled(None))])
        verdicts = await here.apply([success_of(record, None, None) for record in records])
        states = [record.state for record in await here.get([record.id for record in records])]
    assert verdicts == [ACCEPTED, REFUSED[Refusal.CANCELLED], ACCEPTED]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.SUCCEEDED]


async def test_words_said_twice_are_repeated():
    async with store_at() as store:
        await store.enqueue([job() for _ in range(2)])
        words = [success_of(record, None, None) for record in await store.claim(claim(2))]
        assert await store.apply(words[:1]) == [ACCEPTED]
        assert await store.apply(words) == [REPEATED, ACCEPTED]


async def test_one_that_got_a_follower_meanwhile_lets_it_go():
    url = fresh()
    async with store_at(url) as here, store_at(url) as elsewhere:
        parent = job()
        await here.enqueue([parent])
        (record,) = await here.claim(claim())
        follower = job(after=f'["{parent.id}"]', waits=1)
        await elsewhere.enqueue([follower])
        await here.apply([success_of(record, None, None)])
        (released,) = await here.get([follower.id])
    assert released.state is State.READY


async def test_a_lease_that_was_renewed_meanwhile_leaves_no_trace():
    """Even where the job comes back at the very instant at which its first lease would have ended."""
    async with store_at() as store:
        await store.enqueue([job(lease=30 * SECOND)])
        (record,) = await store.claim(claim())
        await store.renew([record.hold])
        change = decide(record, Snoozed(at=record.leased_until))
        assert await store.apply([change]) == [ACCEPTED]
        (snoozed,) = await store.get([record.id])
        place = await store._in_use().database["perdure_places"].find_one({"_id": record.id})
    assert snoozed.state in WAITING
    assert snoozed.leased_until is None
    assert place["order"] == snoozed.run_at == record.leased_until
