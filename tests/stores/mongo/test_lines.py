"""A store with very many queues is claimed from along lines: in the same order, and without the jobs of paused queues."""

import asyncio

import pytest

from perdure.storage.contract import Claim, Want
from perdure.storage.mongo.claiming import claim as claiming
from perdure.storage.mongo.claiming import claim_candidates
from perdure.storage.mongo.connection import operations
from perdure.testing import conformance
from perdure.testing.conformance.tools import ids

from ..conformance.stores import STORES
from .helpers import claim, fresh, job, store_at

ALONG_LINES = ("claim", "limits", "fairness", "promote", "expired", "queues", "unreadable")


@pytest.fixture
def many():
    return [job(queue=f"q{number}", task=f"t{number % 3}", priority=number % 5) for number in range(300)]


def best(jobs):
    return ids(sorted(jobs, key=lambda new: (-new.priority, new.id)))


@pytest.fixture
def asked(monkeypatch):
    """The filters and pipelines that the server was asked about places."""
    noted = []
    take = operations._take

    async def noting(step, database, session):
        if isinstance(step, operations.Find | operations.Aggregate):
            noted.append(step)
        return await take(step, database, session)

    monkeypatch.setattr(operations, "_take", noting)
    return noted


def lists_every_lane(step):
    return isinstance(step, operations.Aggregate) and str(claim_candidates._EVERY_LANE)[1:-1] in str(step.pipeline)


@pytest.mark.parametrize("hidden", [False, True])
async def test_claims_take_the_best_of_all_queues_and_list_the_lanes_once_at_most(many, asked, monkeypatch, hidden):
    """Never, if a look at some jobs tells that there are very many lanes. Deep lanes at both ends hide that."""
    monkeypatch.setattr(claim_candidates, "SAMPLE", 200)
    async with store_at() as store:
        await store.enqueue(many)
        if hidden:
            await store.enqueue([job(queue=queue, priority=-1) for queue in ("a", "z") for _ in range(200)])
        claimed = [await store.claim(claim(20)) for _ in range(5)]
        assert [id for records in claimed for id in ids(records)] == best(many)[:100]
        assert sum(map(lists_every_lane, asked)) == int(hidden)


async def test_lanes_are_counted_anew_after_some_time(many, asked, monkeypatch):
    monkeypatch.setattr(claiming, "MANY_FOR", 0.0)
    async with store_at() as store:
        await store.enqueue(many)
        claimed = [await store.claim(claim(20)) for _ in range(3)]
        assert [id for records in claimed for id in ids(records)] == best(many)[:60]
        assert sum("$limit" in str(step) and "'first'" in str(step) for step in asked) == 3


async def test_a_claim_for_some_tasks_or_queues_takes_the_best_of_those(many):
    async with store_at() as store:
        await store.enqueue(many)
        named = [f"q{number}" for number in range(250)]
        of_task = [new for new in many if new.task == "t1"]
        assert ids(await store.claim(claim(30, tasks=("t1",)))) == best(of_task)[:30]
        left = [new for new in many if new.id not in best(of_task)[:30]]
        of_queues = best(new for new in left if new.queue in named)
        assert ids(await store.claim(claim(30, queues=tuple(named)))) == of_queues[:30]
        both = Claim("w1", claim().stamp, (Want(10, tasks=("t2",)), Want(300)))
        left = [new for new in left if new.id not in of_queues[:30]]
        first = best(new for new in left if new.task == "t2")[:10]
        assert ids(await store.claim(both)) == first + [id for id in best(left) if id not in first]
        assert await store.claim(claim(1)) == []


@pytest.mark.parametrize("depth", [1, 40, 1_200])
async def test_jobs_of_paused_queues_are_passed_by(many, depth):
    async with store_at() as store:
        await store.enqueue(many)
        waiting = [job(queue="paused", task="t1", priority=9) for _ in range(depth)]
        for begin in range(0, depth, store.chunk):
            await store.enqueue(waiting[begin : begin + store.chunk])
        await store.pause("paused", True)
        assert ids(await store.claim(claim(20))) == best(many)[:20]
        assert ids(await store.claim(claim(20))) == best(many)[20:40]
        await store.pause("q4", True)
        assert ids(await store.claim(claim(300))) == [
            id for id in best(many)[40:] if id not in ids(new for new in many if new.queue == "q4")
        ]
        await store.pause("paused", False)
        assert len(await store.claim(claim(2))) == min(2, depth)


async def test_claimers_that_have_met_take_different_jobs(many):
    url = fresh()
    async with store_at(url) as one, store_at(url) as other:
        await one.enqueue(many)
        one._exchanges._reservations.conflict()
        other._exchanges._reservations.conflict()
        taken = [
            id
            for _ in range(5)
            for records in await asyncio.gather(one.claim(claim(30)), other.claim(claim(30, worker="w2")))
            for id in ids(records)
        ]
        while more := await one.claim(claim(30)):
            taken += ids(more)
    assert sorted(taken) == sorted(ids(many))


@pytest.mark.parametrize("case", [case for case in conformance.cases() if case.verb in ALONG_LINES], ids=str)
async def test_the_promises_of_a_claim_hold_along_lines(case, tmp_path, monkeypatch):
    """However few lanes there are."""
    monkeypatch.setattr(claim_candidates, "FEW_LANES", 0)
    await conformance.run(case, lambda: STORES["mongo"](tmp_path))
