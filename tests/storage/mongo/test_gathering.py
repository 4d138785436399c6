"""Many jobs that make the same move are one statement, and each keeps what is its own."""

from holdfast import State
from holdfast.lifecycle import succeeded
from holdfast.storage.mongo.steps import gathered

from .helpers import claim, job, store_at


async def test_jobs_that_end_alike_keep_their_own_starts():
    async with store_at() as store:
        await store.enqueue([job() for _ in range(20)])
        records = await store.claim(claim(20))
        starts = {record.id: record.leased_until + number for number, record in enumerate(records)}
        await store.apply([succeeded(record, '"$payload"', starts[record.id]) for record in records])
        ended = [record for record in await store.get(list(starts)) if record is not None]
    assert {record.id: record.started_at for record in ended} == starts
    assert {(record.state, record.result, record.stamp) for record in ended} == {(State.SUCCEEDED, '"$payload"', None)}


async def test_a_text_with_a_dollar_in_front_stays_a_text():
    async with store_at() as store:
        await store.enqueue([job() for _ in range(2)])
        records = await store.claim(claim(2))
        await store.apply([succeeded(record, "$$ROOT", number) for number, record in enumerate(records)])
        assert [record.result for record in await store.get([record.id for record in records])] == ["$$ROOT"] * 2


def test_changes_that_differ_only_in_their_start_are_one_statement():
    updates = {str(start): {"$set": {"state": "succeeded", "started_at": start}} for start in range(5)}
    assert len(gathered(updates)) == 1


def test_changes_that_differ_in_more_are_statements_of_their_own():
    updates = {str(start): {"$set": {"result": str(start), "started_at": start}} for start in range(5)}
    assert len(gathered(updates)) == 5


def test_a_change_with_a_start_is_not_taken_for_one_without():
    one = {"$set": {"state": "succeeded", "started_at": 1}}
    other = {"$set": {"state": "succeeded"}}
    assert [statement["u"] for statement in gathered({"a": one, "b": other})] == [one, other]
