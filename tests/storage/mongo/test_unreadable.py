"""What somebody else wrote into the documents of a store: one bad value stops nothing else, and is set aside."""

import pytest
from bson import encode
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from perdure.job import State, unreadable_fields
from perdure.storage.contract import Filter, Note

from .helpers import claim, database_of, fresh, held, job, store_at

LIMITS = '[["k",5,null,null]]'


@pytest.fixture
def url():
    return fresh()


@pytest.fixture
def database(url):
    with MongoClient(url) as client:
        yield database_of(client, url)


FLAWS = {
    "state": "sleeping",
    "version": Int64(2**63 - 1),
    "attempt": "nonsense",
    "priority": None,
    "lease": float("nan"),
    "backoff": {"a": 1},
    "payload": 7,
    "limits": "[",
}


@pytest.mark.parametrize("field", FLAWS)
async def test_a_job_that_cannot_be_read_is_set_aside(url, database, field):
    async with store_at(url) as store:
        bad, good = job(), job()
        await store.enqueue([bad, good])
        database.perdure_jobs.update_one({"_id": bad.id}, {"$set": {field: FLAWS[field]}})
        claimed = await store.claim(claim(9))
        assert [record.id for record in claimed] == [good.id]
        await store.inspect(100)
        (record,) = await store.get([bad.id])
        assert (record.state, unreadable_fields(record.reason)) == (State.DEAD, (field,))
        assert [row.id for row in await store.unreadable()] == [bad.id]


async def test_a_payload_that_is_no_text_is_never_altered(url, database):
    """The driver put other characters in place of the bytes, and the job ran with them."""
    async with store_at(url) as store:
        bad, good = job(payload='"@@@@"'), job()
        await store.enqueue([bad, good])
        stored = encode(database.perdure_jobs.find_one({"_id": bad.id})).replace(b"@@@@", b"\xff\xfe@@")
        tolerant = CodecOptions(RawBSONDocument, unicode_decode_error_handler="surrogateescape")
        database.perdure_jobs.replace_one({"_id": bad.id}, RawBSONDocument(stored, tolerant))
        assert [record.id for record in await store.claim(claim(9))] == [good.id]
        (record,) = await store.get([bad.id])
        assert unreadable_fields(record.reason) == ("payload",)


STRANGE = {
    "places": {"_id": "nonsense", "place": '["no lane', "order": "x"},
    "batches": {"_id": "past/nonsense", "kind": "past", "at": 1, "ids": 7},
    "edges": {"_id": "nonsense", "parent": ["a"], "child": 5, "open": True},
    "gates": {"_id": "(nonsense", "shut_by": None, "at": "x"},
    "slots": {"_id": "nonsense", "limits": 5, "keys": "k"},
    "notes": {"_id": "unsettled/nonsense", "what": "nothing"},
    "queues": {"_id": "nonsense", "max_depth": "x", "paused": 5},
    "workers": {"_id": "nonsense", "seen_at": 9e18, "running": "x"},
    "keys": {"_id": "nonsense", "ends": "x"},
    "shelf": {"_id": {"kind": "k", "name": 5}, "text": 5},
}


@pytest.mark.parametrize("collection", STRANGE)
async def test_a_strange_document_stops_nothing_and_is_moved(url, database, collection):
    async with store_at(url) as store:
        await store.enqueue([job(limits=LIMITS), job(), job(delay=1)])
        database[f"perdure_{collection}"].insert_one(STRANGE[collection])
        assert len(await store.claim(claim(9))) >= 1
        assert len(await store.claim(claim(9, limited=True))) == 1
        await store.settle(10)
        await store.prune(10)
        await store.queues()
        await store.workers(10)
        await store.find(Filter(), 10, None)
        await store.inspect(100)
        assert [row.where for row in await store.unreadable()] == [collection]
        assert await store.inspect(100) == 0


async def test_a_log_that_is_no_list_takes_new_lines(url, database):
    async with store_at(url) as store:
        first, second = await held(store), await held(store)
        database.perdure_logs.insert_one({"_id": first.id, "lines": "nonsense"})
        await store.note([Note(record.hold, None, ("a line",)) for record in (first, second)])
        assert await store.log(first.id) == await store.log(second.id) == ["a line"]


@pytest.mark.parametrize("lost", ["places", "batches", "gates"])
async def test_what_is_lost_is_made_again(url, database, lost):
    async with store_at(url) as store:
        await store.enqueue([job(), job(limits=LIMITS)])
        database[f"perdure_{lost}"].delete_many({})
        database.perdure_notes.delete_many({})
        await store.inspect(100)
        claimed = [*await store.claim(claim(9)), *await store.claim(claim(9, limited=True))]
        assert len(claimed) == 2
