"""Many jobs that make the same move are one statement, and each keeps what is its own."""

import msgspec

from perdure import State
from perdure.core.lifecycle import Skipped, decide, success_of
from perdure.core.record import Record
from perdure.storage.mongo.connection.operations import group_by_update
from perdure.storage.mongo.reading.records import update_of
from perdure.storage.mongo.writing.updates import differences

from .helpers import claim, job, store_at


async def test_jobs_that_end_alike_keep_their_own_starts():
    async with store_at() as store:
        await store.enqueue([job() for _ in range(20)])
        records = await store.claim(claim(20))
        starts = {record.id: record.leased_until + number for number, record in enumerate(records)}
        await store.apply([success_of(record, '"$payload"', starts[record.id]) for record in records])
        ended = [record for record in await store.get(list(starts)) if record is not None]
    assert {record.id: record.started_at for record in ended} == starts
    assert {(record.state, record.result, record.stamp) for record in ended} == {(State.SUCCEEDED, '"$payload"', None)}


async def test_a_text_with_a_dollar_in_front_stays_a_text():
    async with store_at() as store:
        await store.enqueue([job() for _ in range(2)])
        records = await store.claim(claim(2))
        await store.apply([decide(record, Skipped("$$ROOT")) for record in records])
        assert [record.reason for record in await store.get([record.id for record in records])] == ["$$ROOT"] * 2


def test_changes_that_differ_only_in_their_start_are_one_statement():
    updates = {str(start): {"$set": {"state": "succeeded", "started_at": start}} for start in range(5)}
    assert len(group_by_update(updates)) == 1


def test_changes_that_differ_in_more_are_statements_of_their_own():
    updates = {str(start): {"$set": {"result": str(start), "started_at": start}} for start in range(5)}
    assert len(group_by_update(updates)) == 5


def test_a_change_with_a_start_is_not_taken_for_one_without():
    one = {"$set": {"state": "succeeded", "started_at": 1}}
    other = {"$set": {"state": "succeeded"}}
    assert [statement["u"] for statement in group_by_update({"a": one, "b": other})] == [one, other]


async def test_a_claim_of_jobs_that_are_alike_is_one_statement():
    """Whatever their instants are; a job that expires, or has been tried before, is another kind."""
    async with store_at() as store:
        await store.enqueue([job(priority=number % 3) for number in range(9)])
        await store.enqueue([job(expires=60_000_000)])
        records = await store.claim(claim(10))
    before = [
        msgspec.structs.replace(record, state=State.READY, attempt=0, version=record.version - 1, stamp=None,
                                leased_by=None, leased_until=None)
        for record in records
    ]  # fmt: skip
    statements = differences(list(zip(before, records, strict=True)))
    expiring = {record.id for record in records if record.expires_at is not None}
    assert len(statements) == 2
    assert len(expiring) == 1
    assert {id for each in statements for id in _ids(each) if "marks" in each["u"]["$set"]} == expiring


def _ids(statement):
    ids = statement["q"]["_id"]
    return [ids] if isinstance(ids, str) else ids["$in"]


async def test_moves_of_every_kind_make_the_documents_that_they_should():
    """Some that differ in what is compared as a whole, and some in what is each job's own."""
    record = Record(**await _a_record())
    moves = []
    for number in range(24):
        before = msgspec.structs.replace(record, id=f"{number:02}", rank=number, run_at=number)
        after = msgspec.structs.replace(
            before,
            state=(State.SUCCEEDED, State.DEAD, State.SCHEDULED)[number % 3],
            started_at=(None, number, 7)[number // 3 % 3],
            rank=before.rank + (number % 5 == 0),
            result=("1", None)[number % 2],
            keep_last=(None, 3)[number % 4 == 3],
        )
        moves.append((before, after))
    statements = {id: each for each in differences(moves) for id in _ids(each)}
    for before, after in moves:
        update = update_of(before, after)
        written = statements[after.id]["u"]
        if isinstance(written, list):  # a pipeline
            (stage,) = written
            own = stage["$set"].pop("started_at", None)
            literal = {name: value["$literal"] for name, value in stage["$set"].items() if value != "$$REMOVE"}
            if own is not None:
                starts, which = own["$arrayElemAt"]
                literal["started_at"] = starts["$literal"][which["$indexOfArray"][0]["$literal"].index(after.id)]
                stage["$set"]["started_at"] = own
            assert literal == update["$set"]
            assert {name for name, value in stage["$set"].items() if value == "$$REMOVE"} == set(
                update.get("$unset", ())
            )
        else:
            assert written == update


async def _a_record():
    async with store_at() as store:
        await store.enqueue([job()])
        (record,) = await store.claim(claim())
    return msgspec.structs.asdict(record)
