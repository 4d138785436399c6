"""The answer to a claim is the job as it stands, with everything that few jobs have."""

import pytest

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Want
from perdure.storage.urls import opener
from perdure.testing.conformance.tools import job
from tests.support.real_servers import kinds_with_a_store, server

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
RARE = {
    "key": 'a "quoted" key\x00 \\ ü',
    "tenant": "acme",
    "tags": '["red","blue"]',
    "meta": '{"trace":"1"}',
    "routing_key": "north",
    "run_when": "finished",
    "chain_id": "00000000-0000-7000-8000-000000000001",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_gives_the_job_as_it_stands_whatever_is_rare_about_it(kind):
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    jobs = [job(), job(**RARE), *(job(**{name: value}) for name, value in RARE.items())]
    jobs.append(job(unique_key="one of a kind", unique_scope="active"))
    try:
        await store.enqueue(jobs)
        claimed = (await store.exchange([], Claim("worker", new_stamp(), (Want(100),)))).claimed
        assert {record.id for record in claimed} == {each.id for each in jobs}
        assert claimed == await store.get([record.id for record in claimed])
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_jobs_of_several_kinds_come_in_their_order_whether_usual_or_not(kind):
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    kinds = [
        {},
        {"task": "other"},
        {"lease": 7 * SECOND},
        {"retention": '{"age":1}'},
        {"tags": '["red"]'},
        {"timeout": None},
    ]
    jobs = [job(**{**kinds[n % len(kinds)], "priority": n % 2, "payload": f'{{"n":{n}}}'}) for n in range(60)]
    jobs.append(job(payload='"not JSON \x1e but kept"'))
    try:
        await store.enqueue(jobs)
        claimed = (await store.exchange([], Claim("worker", new_stamp(), (Want(100),)))).claimed
        assert [record.id for record in claimed] == [each.id for each in sorted(jobs, key=lambda each: -each.priority)]
        assert claimed == await store.get([record.id for record in claimed])
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_jobs_under_a_limit_are_told_like_all_others(kind):
    """Together where they are usual; they come with the ends of those before them."""
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    jobs = [job(limits='[["k",1000]]', payload=f'{{"n":{n}}}', **(RARE if n % 7 == 0 else {})) for n in range(90)]
    try:
        await store.enqueue(jobs)
        claimed: list = []
        come: list = []
        while len(come) < len(jobs):
            asked = Claim("worker", new_stamp(), (Want(1), Want(30, limited=True)))
            claimed = list((await store.exchange([decide(record, Succeeded()) for record in claimed], asked)).claimed)
            assert claimed == await store.get([record.id for record in claimed])
            come += claimed
        assert [record.id for record in come] == [each.id for each in jobs]
    finally:
        await store.close()
