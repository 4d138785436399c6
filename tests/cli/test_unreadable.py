"""The command line on a store with rows that cannot be read, on one store of each kind."""

import asyncio
import json

import msgspec
import pytest

from perdure import JobHandle
from perdure.storage.contract import JobDump, KvEntry, WorkerRow
from tests.support.addresses import NAMES, OF_EACH_KIND, address

from .conftest import Shop

STORES = [name for name in NAMES if name in ("sqlite", "sqlite+apsw", *OF_EACH_KIND)]
FLAWS = {"harmless": {"errors": "broken"}, "lost": {"payload": "{", "errors": "broken"}}


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def shop(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    return Shop(tmp_path, address(kind, tmp_path))


@pytest.fixture
def ids(shop):
    """Three waiting jobs; of two the rows cannot be read."""
    return asyncio.run(_spoiled(shop))


async def _spoiled(shop):
    async with shop.app as app:
        jobs = {name: str((await shop.names["add"].enqueue(1, 2)).id) for name in ("good", *FLAWS)}
        storage = await app._runtime.storage()
        for carried in await storage.export(None, 100):
            for name, flaws in FLAWS.items():
                if carried.record.id == jobs[name]:
                    await storage.restore([JobDump(msgspec.structs.replace(carried.record, **flaws))])
    return jobs


@pytest.fixture
def aside(shop, ids):
    """The same, after an inspection has set them aside."""

    async def inspect():
        async with shop.app as app:
            storage = await app._runtime.storage()
            for _ in range(3):
                await storage.inspect(100)

    asyncio.run(inspect())
    return ids


def checks(shop):
    code, out, err = shop.run("doctor", "--json")
    assert code == 0, err
    return {check["name"]: check for check in json.loads(out)["checks"]}


# ---- before anybody has set them aside ---------------------------------------------------------------
def test_jobs_are_listed_and_marked(shop, ids):
    listed = {job["id"]: job for job in shop.json("jobs", "list")["jobs"]}
    assert {name: listed[id]["state"] for name, id in ids.items()} == dict.fromkeys(ids, "ready")
    assert listed[ids["good"]]["reason"] is None
    assert listed[ids["harmless"]]["reason"] == "unreadable: errors"
    assert listed[ids["lost"]]["reason"] == "unreadable: payload, errors"
    assert shop.json("jobs", "get", ids["lost"])["reason"] == "unreadable: payload, errors"
    table = shop.perdure("jobs", "list")
    assert (table.exit_code, table.output.count("unreadable: ")) == (0, 2)
    assert shop.json("jobs", "count") == {"count": 3}


# ---- doctor ------------------------------------------------------------------------------------------
def test_the_doctor_finds_nothing(shop):
    shop.enqueue("add", 1, 2)
    assert checks(shop)["unreadable"]["status"] == "ok"


def test_the_doctor_tells_how_many_and_of_the_last(shop, aside):
    found = checks(shop)["unreadable"]
    assert found["status"] == "warn"
    assert found["found"].startswith("2 rows could not be read and set aside, the last one jobs ")
    assert any(aside[name] in found["found"] for name in FLAWS)
    assert "dead export" in found["remedy"]


def test_the_doctor_reads_the_other_workers(shop):
    async def beat():
        async with shop.app as app:
            storage = await app._runtime.storage()
            now = await storage.now()
            for name, about in (("a", "broken"), ("b", "[]"), ("c", '{"tasks":5}'), ("d", '{"tasks":["add"]}')):
                await storage.heartbeat(WorkerRow(name, now, now, 0, about))

    asyncio.run(beat())
    shop.enqueue("send", "a@b.c")
    found = checks(shop)["tasks"]
    assert (found["status"], found["found"]) == ("warn", "nobody knows send (1 job)")
    assert {worker["id"] for worker in shop.json("workers", "list")["workers"]} >= {"d"}


# ---- dead letters ------------------------------------------------------------------------------------
def test_dead_letters_are_listed_with_their_reason(shop, aside):
    listed = {job["id"]: job["reason"] for job in shop.json("dead", "list")["jobs"]}
    assert listed == {aside["harmless"]: "unreadable: errors", aside["lost"]: "unreadable: payload, errors"}


def test_export_writes_the_rows_as_they_were(shop, aside, tmp_path):
    code, out, err = shop.run("dead", "export", "letters.jsonl", "--json")
    assert (code, json.loads(out)["exported"]) == (0, 2), err
    lines = {line["id"]: line for line in map(json.loads, (tmp_path / "letters.jsonl").read_text().splitlines())}
    assert lines.keys() == {aside["harmless"], aside["lost"]}
    harmless, lost = (lines[aside[name]]["unreadable"] for name in ("harmless", "lost"))
    assert (harmless["where"], harmless["id"], harmless["fields"]) == ("jobs", aside["harmless"], ["errors"])
    assert (lost["where"], lost["id"], lost["fields"]) == ("jobs", aside["lost"], ["payload", "errors"])
    assert (harmless["raw"]["errors"], lost["raw"]["errors"], lost["raw"]["payload"]) == ("broken", "broken", "{")
    assert json.loads(harmless["raw"]["payload"]) == {"a": 1, "b": 2}, "what is needed to enqueue it again"


def test_export_with_a_filter_writes_what_fits(shop, aside, tmp_path):
    assert shop.json("dead", "export", "none.jsonl", "--task", "send")["exported"] == 0
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_retry_takes_the_one_that_lost_nothing_it_needs(shop, aside):
    done = shop.perdure("dead", "retry", aside["harmless"], aside["lost"])
    assert (done.exit_code, done.output) == (1, "retried: 1 of 2\n")
    assert shop.json("jobs", "get", aside["harmless"])["state"] == "ready"
    assert shop.json("jobs", "get", aside["lost"])["state"] == "dead"

    async def work():
        async with shop.app as app, app.worker(concurrency=1, poll=0.05):
            return await JobHandle(app._runtime, aside["harmless"], app.definitions()["add"]).result(timeout=20)

    assert asyncio.run(work()) == 3


def test_retry_all_takes_the_same(shop, aside):
    assert shop.json("dead", "retry-all", "--yes") == {"retried": 1}
    assert [job["id"] for job in shop.json("dead", "list")["jobs"]] == [aside["lost"]]


def test_purge_deletes_them(shop, aside):
    assert shop.json("dead", "purge", "--before", "0s", "--yes") == {"purged": 2, "refused": 0}
    assert shop.json("dead", "list")["jobs"] == []
    assert [job["id"] for job in shop.json("jobs", "list")["jobs"]] == [aside["good"]]


# ---- schedules ---------------------------------------------------------------------------------------
def test_schedules_are_listed_and_marked(shop):
    async def put():
        async with shop.app as app:
            for name in ("a", "b"):
                await app.schedules.put(name, "0 3 * * *", shop.names["add"].call(1, 2))
            await (await app._runtime.storage()).restore_kv([KvEntry("schedule", "b", "broken", 2)])

    asyncio.run(put())
    assert [(each["name"], each["unreadable"]) for each in shop.json("schedules", "list")["schedules"]] == [
        ("a", False),
        ("b", True),
    ]
    lines = shop.perdure("schedules", "list").output.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["a", "open"], ["b", "unreadable"]]
    refused = shop.perdure("schedules", "pause", "b")
    assert (refused.exit_code, "cannot be read" in refused.output) == (1, True)
    assert shop.perdure("schedules", "remove", "b", "--yes").exit_code == 0
    assert [each["name"] for each in shop.json("schedules", "list")["schedules"]] == ["a"]
