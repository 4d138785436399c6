"""What somebody else wrote into the documents of a store: one bad value stops nothing else, and is set aside."""

import pytest
from bson import encode
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.core.record import unreadable_fields
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


@pytest.mark.parametrize(
    "value", [b"\xff\xfe", ["a"], {"a": 1}, 7, True], ids=["bytes", "list", "document", "number", "bool"]
)
@pytest.mark.parametrize("field", ["payload", "key", "reason", "errors"])
async def test_a_search_for_text_passes_over_what_is_no_text(url, database, field, value):
    """The server refused to compare it, and every search of the store failed."""
    async with store_at(url) as store:
        bad, good = job(payload='"other"'), job(payload='"a Needle"')
        await store.enqueue([bad, good])
        database.perdure_jobs.update_one({"_id": bad.id}, {"$set": {field: value}})
        found, _ = await store.find(Filter(text="needle"), 9, None)
        assert [record.id for record in found] == [good.id]
        assert await store.count(Filter(text="needle")) == 1


STRANGE = {
    "places": {"_id": "nonsense", "place": '["no lane', "order": "x"},
    "batches": {"_id": "past/nonsense", "kind": "past", "at": 1, "ids": 7},
    "edges": {"_id": "nonsense", "parent": ["a"], "child": 5, "open": True},
    "gates": {"_id": "(nonsense", "shut_by": None, "at": "x"},
    "slots": {"_id": "nonsense", "limits": 5, "keys": "k"},
    "notes": {"_id": "unresolved/nonsense", "what": "nothing"},
    "queues": {"_id": "nonsense", "max_depth": "x", "paused": 5},
    "workers": {"_id": "nonsense", "seen_at": 9e18, "running": "x"},
    "keys": {"_id": "nonsense", "ends": "x"},
    "kv": {"_id": {"kind": "k", "name": 5}, "text": 5},
}


@pytest.mark.parametrize("collection", STRANGE)
async def test_a_strange_document_stops_nothing_and_is_moved(url, database, collection):
    async with store_at(url) as store:
        await store.enqueue([job(limits=LIMITS), job(), job(delay=1)])
        database[f"perdure_{collection}"].insert_one(STRANGE[collection])
        assert len(await store.claim(claim(9))) == 2
        assert len(await store.claim(claim(9, limited=True))) == 1
        await store.resolve_edges(10)
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


ONE = '[["one",1,null,null]]'
SPOILED_GATES = {
    "another queue": {"queue": "nonsense"},
    "another task": {"task": "nonsense"},
    "other limits": {"limits": '[["other",1,null,null]]'},
    "suspects": {"suspect": 1},
    "an unknown key": {"shut_by": "knonsense"},
    "a far instant": {"shut_by": None, "at": Int64(2**62)},
    "a far instant and a key": {"at": Int64(2**62)},
}


@pytest.mark.parametrize("spoiled", SPOILED_GATES.values(), ids=SPOILED_GATES)
async def test_a_gate_that_contradicts_itself_is_made_again(url, database, spoiled):
    """Otherwise the jobs behind it would wait for ever."""
    async with store_at(url) as store:
        first, second = job(limits=ONE), job(limits=ONE)
        await store.enqueue([first, second])
        (running,) = await store.claim(claim(9, limited=True))
        database.perdure_gates.update_many({}, {"$set": spoiled})
        await store.apply([decide(running, Succeeded())])
        await store.inspect(100)
        assert [record.id for record in await store.claim(claim(9, limited=True))] == [second.id]


async def test_a_gate_opens_although_the_word_of_room_is_lost(url, database):
    async with store_at(url) as store:
        first, second = job(limits=ONE), job(limits=ONE)
        await store.enqueue([first, second])
        (running,) = await store.claim(claim(9, limited=True))
        assert await store.claim(claim(9, limited=True)) == []
        await store.apply([decide(running, Succeeded())])
        database.perdure_notes.delete_many({"_id": {"$regex": "^wakeup/"}})
        await store.inspect(100)
        assert [record.id for record in await store.claim(claim(9, limited=True))] == [second.id]


@pytest.mark.parametrize("spoiled", [{"$unset": {"at": ""}}, {"$set": {"at": "nonsense"}}, {"$set": {"by": 7}}])
async def test_the_notes_of_turns_cannot_be_read(url, database, spoiled):
    """Every claim under limits reads them."""
    async with store_at(url) as store:
        first, second = job(limits=LIMITS), job(limits=LIMITS)
        await store.enqueue([first])
        await store.claim(claim(9, limited=True))
        database.perdure_notes.update_many({"_id": {"$in": ["wakeup", "wakeup+", "wakeup-"]}}, spoiled)
        await store.enqueue([second])
        assert [record.id for record in await store.claim(claim(9, limited=True))] == [second.id]


@pytest.mark.parametrize("spoiled", [{"jobs": Int64(2**62)}, {"jobs": Int64(-(2**62))}, {"keys": ["other"]}])
async def test_a_count_of_running_jobs_that_cannot_be(url, database, spoiled):
    async with store_at(url) as store:
        jobs = [job(limits=LIMITS) for _ in range(4)]
        await store.enqueue(jobs[:2])
        await store.claim(claim(9, limited=True))
        database.perdure_slots.update_many({}, {"$set": spoiled})
        await store.inspect(100)
        await store.enqueue(jobs[2:])
        assert len(await store.claim(claim(9, limited=True))) == 2


@pytest.mark.parametrize("fields", [{"limits": LIMITS, "delay": 10**9}, {}], ids=["scheduled", "without limits"])
async def test_a_job_that_is_wrongly_parked_is_inspected_once(url, database, fields):
    """It has no gate, so no claim is woken for one."""
    async with store_at(url) as store:
        wrong = job(**fields)
        await store.enqueue([wrong])
        database.perdure_jobs.update_one({"_id": wrong.id}, {"$set": {"parked": True}})
        await store.inspect(100)
        assert await store.inspect(100) == 0
        assert await store.unreadable() == []


async def test_one_inspection_looks_at_several_pages(url, database):
    async with store_at(url) as store:
        jobs = [job() for _ in range(35)]
        await store.enqueue(jobs)
        last = max(each.id for each in jobs)
        database.perdure_places.delete_one({"_id": last})
        assert await store.inspect(10) == 1
        assert last in {record.id for record in await store.claim(claim(99))}
