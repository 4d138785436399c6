"""Leases and times to go are noted for whole batches; what is true stands on the jobs."""

from perdure import State
from perdure.core.clock import SECOND
from perdure.core.lifecycle import Cancelled, LeaseLapsed, decide, success_of
from perdure.storage.contract import ACCEPTED, Filter
from perdure.storage.mongo.upkeep import upkeep
from perdure.testing.clock import ManualClock
from perdure.testing.conformance.tools import LONG_ENOUGH

from .helpers import claim, fresh, job, store_at

LEASE = 30 * SECOND


def batches(store):
    return store._in_use().database["perdure_batches"]


async def claimed(store, number, worker="w1"):
    await store.enqueue([job(lease=LEASE) for _ in range(number)])
    return await store.claim(claim(number, worker))


async def test_a_claim_and_the_ends_of_its_jobs_are_a_batch_each():
    async with store_at() as store:
        records = await claimed(store, 20)
        await store.apply([success_of(record, None, None) for record in records])
        found = await batches(store).find({}).to_list()
    assert sorted((batch["kind"], len(batch["ids"])) for batch in found) == [("lease", 20), ("past", 20)]


async def test_batches_whose_jobs_have_ended_are_put_away():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        records = await claimed(store, 3)
        await store.apply([success_of(record, None, None) for record in records])
        clock.advance(31)
        assert await store.lapsed(9, LONG_ENOUGH) == []
        assert await batches(store).count_documents({"kind": "lease"}) == 0


async def test_renewed_leases_are_over_when_the_last_one_is():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        first, second = await claimed(store, 2)
        clock.advance(20)
        await store.renew([second.hold])
        clock.advance(15)
        assert [record.id for record in await store.lapsed(9, LONG_ENOUGH)] == [first.id]
        assert [record.id for record in await store.lapsed(9, LONG_ENOUGH)] == [first.id]
        clock.advance(20)
        assert [record.id for record in await store.lapsed(9, LONG_ENOUGH)] == [first.id, second.id]
        assert [record.id for record in await store.lapsed(1, LONG_ENOUGH)] == [first.id]


async def test_those_whose_lease_is_over_longest_come_first_whatever_batch_they_stand_in():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        (early,) = await claimed(store, 1)
        clock.advance(10)
        (late,) = await claimed(store, 1, "w2")
        clock.advance(10)
        await store.renew([early.hold])
        clock.advance(100)
        assert [record.id for record in await store.lapsed(1, LONG_ENOUGH)] == [late.id]
        assert [record.id for record in await store.lapsed(2, LONG_ENOUGH)] == [late.id, early.id]


async def test_more_batches_than_are_looked_at_together(monkeypatch):
    monkeypatch.setattr(upkeep, "BATCHES", 2)
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        records = [(await claimed(store, 1))[0] for _ in range(7)]
        await store.apply([success_of(record, None, None) for record in records[:5]])
        clock.advance(31)
        expected = sorted(record.id for record in records[5:])
        assert [record.id for record in await store.lapsed(9, LONG_ENOUGH)] == expected


async def test_a_renewal_before_the_clock_went_back_is_cut():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        (record,) = await claimed(store, 1)
        clock.advance(20)
        await store.renew([record.hold])
        clock.advance(-10)
        assert await store.lapsed(9, LONG_ENOUGH) == []
        (cut,) = await store.get([record.id])
        assert cut.leased_until == record.leased_until + 10 * SECOND
        clock.advance(31)
        assert [each.id for each in await store.lapsed(9, LONG_ENOUGH)] == [record.id]


async def test_what_is_held_is_known_after_many_renewals():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        await store.enqueue([job(lease=LEASE), job(lease=LEASE)])
        ending, record = await store.claim(claim(2, stamp=7))
        await store.apply([success_of(ending, None, None)])
        for _ in range(4):
            clock.advance(20)
            await store.renew([record.hold])
            assert await store.lapsed(9, LONG_ENOUGH) == []
        assert [each.id for each in await store.recover_claim("w1", 7)] == [record.id]
        assert await store.recover_claim("w1", 8) == []
        assert await store.count(Filter(states=(State.RUNNING,))) == 1
        shown, _ = await store.find(Filter(states=(State.RUNNING,)), 9, None)
        assert [each.id for each in shown] == [record.id]
        assert await batches(store).count_documents({"kind": "lease"}) <= 4


async def test_a_job_that_was_cancelled_while_it_ran_is_freed_by_its_lease():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        (record,) = await claimed(store, 1)
        await store.apply([decide(record, Cancelled(None))])
        clock.advance(31)
        (over,) = await store.lapsed(9, LONG_ENOUGH)
        assert over.state is State.CANCELLED
        assert await store.apply([decide(over, LeaseLapsed(charged=True))]) == [ACCEPTED]
        assert await store.lapsed(9, LONG_ENOUGH) == []


async def test_a_prune_takes_jobs_off_their_batches():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        records = await claimed(store, 5)
        await store.apply([success_of(record, None, None) for record in records])
        clock.advance(400 * 86_400)
        assert await store.prune(2) == 2
        assert await store.prune(9) == 3
        assert await batches(store).count_documents({"kind": "past"}) == 0


async def test_places_of_jobs_that_somebody_removed_are_given_up():
    url = fresh()
    async with store_at(url) as store:
        jobs = [job() for _ in range(4)]
        await store.enqueue(jobs)
        database = store._in_use().database
        await database["perdure_jobs"].delete_many({"_id": {"$in": [each.id for each in jobs[:3]]}})
        assert [record.id for record in await store.claim(claim(2))] == [jobs[3].id]
        assert await database["perdure_places"].count_documents({}) == 0
