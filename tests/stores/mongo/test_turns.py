"""Claims under limits come one after the other; where there is nothing but room, two of one process go abreast."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import success_of
from perdure.errors import StoreError
from perdure.storage.contract import Claim, Want
from perdure.storage.mongo.connection import operations
from tests.support.waiting import eventually, stays

from .helpers import claim, fresh, job, store_at


def limited(most, key="k", **fields):
    return job(limits=f'[["{key}",{most},null,null]]', **fields)


def under_limits(limit):
    return claim(limit, limited=True)


def ended(records):
    return [success_of(record, None, None) for record in records]


@asynccontextmanager
async def commits_held_back(store):
    """Transactions that want to commit wait; how many do."""
    server = store._in_use()
    commit, let_go, waiting = server.commit, asyncio.Event(), []

    async def late(session, retries):
        waiting.append(session)
        await let_go.wait()
        await commit(session, retries)

    server.commit = late
    try:
        yield let_go, waiting
    finally:
        server.commit = commit


async def settled(store, jobs=1):
    """A store that has claimed under limits, alone, and found nothing but room."""
    (record,) = await store.claim(under_limits(jobs))
    return record


async def abreast(store, *limits):
    """Claims that are all under way before the first is committed, and what they take."""
    async with commits_held_back(store) as (let_go, waiting):
        claims = [asyncio.create_task(store.claim(under_limits(limit))) for limit in limits]
        await eventually(lambda: len(waiting) == len(limits))
        let_go.set()
        return [await each for each in claims]


async def taken_one_after_the_other(store, *limits):
    """The same where the second must wait for the first."""
    async with commits_held_back(store) as (let_go, waiting):
        claims = [asyncio.create_task(store.claim(under_limits(limit))) for limit in limits]
        await eventually(lambda: waiting)
        await stays(lambda: len(waiting) == 1, 0.05)
        let_go.set()
        return [await each for each in claims]


async def running(store):
    found = store._in_use().database["perdure_slots"].find({})
    return sum([slot["jobs"] async for slot in found])


async def test_two_that_find_nothing_but_room_go_abreast_and_take_different_jobs():
    async with store_at() as store:
        jobs = [limited(1_000) for _ in range(60)]
        await store.enqueue(jobs)
        await settled(store)
        one, other = await abreast(store, 10, 20)
        assert [len(one), len(other)] == [10, 20]
        assert [record.id for record in [*one, *other]] == [each.id for each in jobs[1:31]]
        assert await running(store) == 31


async def test_ends_of_two_abreast_are_counted():
    async with store_at() as store:
        await store.enqueue([limited(1_000) for _ in range(60)])
        await settled(store)
        for _ in range(3):
            one, other = await abreast(store, 5, 5)
            await asyncio.gather(
                store.exchange(ended(one), under_limits(2)), store.exchange(ended(other), under_limits(3))
            )
        assert await running(store) == 1 + 3 * 5


async def test_jobs_under_other_limits_have_their_own_room():
    async with store_at() as store:
        await store.enqueue([each for _ in range(20) for each in (limited(500), limited(500, key="other"))])
        await store.claim(under_limits(2))
        one, other = await abreast(store, 8, 8)
        assert len({record.id for record in [*one, *other]}) == 16


async def test_what_the_other_may_take_must_find_room_too():
    """Neither sees the other's jobs, so both are counted in full: together they would be too many."""
    async with store_at() as store:
        await store.enqueue([limited(9) for _ in range(20)])
        await settled(store)
        one, other = await taken_one_after_the_other(store, 6, 6)
        assert sorted([len(one), len(other)]) == [2, 6]


async def test_ends_that_nobody_has_to_hear_of_are_told_in_turn(monkeypatch):
    """Another process may be about to shut a gate by their key: it must meet them, or see them."""
    written = []
    take = operations._take

    async def noting(step, database, session):
        if isinstance(step, operations.Update) and step.collection == "notes":
            written.extend(statement["q"]["_id"] for statement in step.statements)
        return await take(step, database, session)

    async with store_at() as store:
        await store.enqueue([limited(1_000) for _ in range(9)])
        record = await settled(store)
        monkeypatch.setattr(operations, "_take", noting)
        await store.exchange(ended([record]), claim(5, limited=True, tasks=("another",)))
    assert written == ["wakeup"]


async def test_a_gate_that_is_shut_is_looked_at_alone():
    async with store_at() as store:
        await store.enqueue([*(limited(1, key="other") for _ in range(2)), *(limited(900) for _ in range(20))])
        await store.claim(under_limits(2))
        one, other = await taken_one_after_the_other(store, 3, 3)
        assert len({record.id for record in [*one, *other]}) == 6


async def test_a_rate_is_counted_alone():
    async with store_at() as store:
        await store.enqueue([job(limits='[["k",null,1000,60000000]]') for _ in range(20)])
        await settled(store)
        one, other = await taken_one_after_the_other(store, 3, 3)
        assert len({record.id for record in [*one, *other]}) == 6


async def test_a_job_at_an_unknown_gate_is_heard_of_by_one_alone():
    async with store_at() as store:
        await store.enqueue([limited(900) for _ in range(3)])
        await settled(store)
        await store.enqueue([limited(900, key="other")])
        assert len(await store.claim(under_limits(9))) == 3


async def test_after_a_claim_that_broke_the_next_one_is_alone():
    """Whether it was committed is not known: it may be, while the next one looks."""
    async with store_at() as store:
        await store.enqueue([limited(1_000) for _ in range(20)])
        await settled(store)
        server = store._in_use()
        commit = server.commit

        async def lost(session, retries):
            raise StoreError("nobody answers")

        server.commit = lost
        with pytest.raises(StoreError):
            await store.claim(under_limits(3))
        server.commit = commit
        one, other = await taken_one_after_the_other(store, 3, 3)
        assert len({record.id for record in [*one, *other]}) == 6


async def test_another_process_that_had_its_turn_is_seen():
    url = fresh()
    async with store_at(url) as store, store_at(url) as another:
        await store.enqueue([limited(40) for _ in range(60)])
        await settled(store)
        assert len(await another.claim(under_limits(30))) == 30
        one, other = await taken_one_after_the_other(store, 8, 8)
        assert sorted([len(one), len(other)]) == [1, 8]


async def test_another_process_that_comes_between_meets_them():
    """It counts what they take, and no more start than may."""
    url = fresh()
    async with store_at(url) as store, store_at(url) as another:
        await store.enqueue([limited(50) for _ in range(90)])
        await settled(store)
        async with commits_held_back(store) as (let_go, waiting):
            claims = [asyncio.create_task(store.claim(under_limits(9))) for _ in range(2)]
            await eventually(lambda: len(waiting) == 2)
            between = asyncio.create_task(another.claim(under_limits(60)))
            await asyncio.sleep(0.1)
            let_go.set()
            one, other = [await each for each in claims]
        assert [len(one), len(other), len(await between)] == [9, 9, 31]
        notes = store._in_use().database["perdure_notes"]
        assert await notes.find_one({"_id": "wakeup-"}) is not None
        assert not await store.claim(under_limits(9))


async def test_who_has_met_somebody_lets_him_in():
    """After two have met, claims come one after the other for a while."""
    url = fresh()
    async with store_at(url) as store, store_at(url) as another:
        await store.enqueue([limited(900) for _ in range(90)])
        await settled(store)
        await another._exchanges._turns.meet(another._in_use(), another._now())
        assert len(await store.claim(under_limits(3))) == 3
        one, other = await taken_one_after_the_other(store, 3, 3)
        assert len({record.id for record in [*one, *other]}) == 6


async def test_a_gate_that_opens_and_shuts_again_is_not_written(monkeypatch):
    written = []
    take = operations._take

    async def noting(step, database, session):
        if isinstance(step, operations.Update):
            written.append(step.collection)
        return await take(step, database, session)

    async with store_at() as store:
        await store.enqueue([limited(3) for _ in range(20)])
        first = await store.claim(under_limits(9))
        monkeypatch.setattr(operations, "_take", noting)
        second = (await store.exchange(ended(first), under_limits(9))).claimed
        assert len(second) == 3
        assert "gates" not in written
        await store.apply(ended(second))
        assert len(await store.claim(under_limits(9))) == 3


async def test_wants_of_one_claim_take_different_jobs():
    """What was taken for one of them is on record only when all have chosen."""
    async with store_at() as store:
        jobs = [limited(9) for _ in range(5)] + [job() for _ in range(5)]
        await store.enqueue(jobs)
        wants = [Want(2), Want(2, limited=True), Want(2), Want(9, limited=True)]
        taken = await store.claim(Claim("w1", new_stamp(), tuple(wants)))
        assert [record.id for record in taken] == [jobs[n].id for n in (5, 6, 0, 1, 7, 8, 2, 3, 4)]
        assert await running(store) == 5
