"""What a process left open that died before its commit keeps nobody waiting for long, whoever meets it."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from secrets import token_hex
from time import monotonic

import pytest
from pymongo.errors import OperationFailure

from perdure.core.job import State
from perdure.core.lifecycle import RunnerLost, decide
from perdure.storage.mongo.connection import server, server_transactions
from perdure.storage.mongo.connection.server_transactions import abandoned_in
from perdure.storage.urls import parse

from .helpers import claim, fresh, held, job, store_at

WRITES_AND_WAITS = """
import sys, time
from pymongo import MongoClient
url, database, collection, appname = sys.argv[1:]
client = MongoClient(url, appname=appname)
session = client.start_session()
session.start_transaction()
print(client[database][collection].update_many({}, {"$inc": {"mark": 1}}, session=session).matched_count, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def name(monkeypatch):
    """Clients of a name of their own: other tests have transactions on the same server, which are not to be ended."""
    name = f"perdure {token_hex(4)}"
    monkeypatch.setattr(server_transactions, "APPNAME", name)
    monkeypatch.setitem(server.DEFAULTS, "appname", name)


@contextmanager
def writing_to(url, collection, *, dead=True, appname=None):
    """A process that has written to every document of a collection, and has not committed it."""
    database = parse(url).server.database
    names = (f"perdure_{collection}", appname or server_transactions.APPNAME)
    command = [sys.executable, "-c", WRITES_AND_WAITS, url, database, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline()) > 0
            if dead:
                process.kill()
            yield
        finally:
            process.kill()


async def open_transactions(store):
    """The transactions of our clients that the server still has open, however short they have been idle."""
    client = store._in_use().client
    listed = await server_transactions._list_operations(client, server_transactions._IDLE, connections=True)
    return [one for one in listed if one.get("appName") == server_transactions.APPNAME and "transaction" in one]


def limited(most=9):
    return job(limits=f'[["k",{most},null,null]]')


async def test_a_dead_claimer_under_limits_is_out_of_the_way_within_seconds(machine):
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([limited() for _ in range(5)])
        await store.claim(claim(1, limited=True))
        with writing_to(url, "notes"):
            began = monotonic()
            assert len(await store.claim(claim(4, limited=True))) == 4
    assert monotonic() - began < machine.seconds(5)


async def test_jobs_that_a_dead_claimer_was_about_to_take_are_taken_soon(machine):
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([job() for _ in range(20)])
        with writing_to(url, "places"):
            taken, began = [], monotonic()
            async with asyncio.timeout(50):
                while len(taken) < 20:
                    answer = await store.exchange([], claim(20 - len(taken)))
                    taken += answer.claimed
                    await asyncio.sleep((answer.next_due or 0) / 1_000_000)
    assert monotonic() - began < machine.seconds(4)
    assert len({record.id for record in taken}) == 20


async def test_a_change_waits_for_no_dead_process():
    url = fresh()
    async with store_at(url) as store:
        record = await held(store)
        with writing_to(url, "jobs"):
            async with asyncio.timeout(15):
                (verdict,) = await store.apply([decide(record, RunnerLost())])
        assert verdict.accepted
        assert (await store.get([record.id]))[0].state is State.READY


async def test_one_that_lies_idle_for_too_long_is_ended_though_it_is_connected(monkeypatch):
    monkeypatch.setattr(server_transactions, "AT_ALL", 300_000)
    url = fresh()
    async with store_at(url) as store:
        record = await held(store)
        with writing_to(url, "jobs", dead=False):
            async with asyncio.timeout(15):
                (verdict,) = await store.apply([decide(record, RunnerLost())])
        assert verdict.accepted


async def test_who_was_taken_for_dead_begins_again(monkeypatch):
    """Nothing of what it did was done. It counts what others have taken meanwhile."""
    monkeypatch.setattr(server_transactions, "AT_ALL", 300_000)
    url = fresh()
    async with store_at(url) as store, store_at(url) as other:
        await store.enqueue([limited(5) for _ in range(20)])
        await store.claim(claim(1, limited=True))
        here = store._in_use()
        commit, stopped, goes_on = here.commit, asyncio.Event(), asyncio.Event()

        async def late(session, retries):
            stopped.set()
            await goes_on.wait()
            await commit(session, retries)

        monkeypatch.setattr(here, "commit", late)
        slow = asyncio.create_task(store.claim(claim(4, limited=True)))
        await stopped.wait()
        async with asyncio.timeout(15):
            taken = await other.claim(claim(3, limited=True))
        goes_on.set()
        assert [len(taken), len(await slow)] == [3, 1]


@pytest.mark.parametrize(
    ("listed", "is_ended"),
    [
        ({}, False),
        ({"connectionId": 8}, True),  # its connection is gone
        ({"connectionId": 8, "host": "another", "transaction": {"timeInactiveMicros": 400_000}}, False),
        ({"host": "another"}, True),  # where 7 is somebody else's
        ({"connectionId": 8, "appName": "shop"}, False),  # not one of ours
        ({"transaction": {"timeInactiveMicros": 5_000_000}}, False),
        ({"transaction": {"timeInactiveMicros": 6_500_000}}, True),
        ({"type": "op"}, False),  # at work
    ],
)
def test_which_are_abandoned(listed, is_ended):
    session = {
        "type": "idleSession",
        "host": "here",
        "connectionId": 7,
        "appName": server_transactions.APPNAME,
        "lsid": {"id": "s"},
        "transaction": {"timeInactiveMicros": 700_000},
    }
    others = [{"type": "op", "host": "here", "connectionId": 7}, {"type": "op", "host": "here"}]
    assert abandoned_in([session | listed, *others]).abandoned == (["s"] if is_ended else [])


async def test_transactions_of_other_programs_are_left_alone(monkeypatch):
    monkeypatch.setattr(server_transactions, "AT_ALL", 0)
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([job()])
        here = store._in_use()
        with writing_to(url, "jobs", dead=False, appname="shop"):
            assert await here.abandoned.end()
            async with here.begin() as session:
                with pytest.raises(OperationFailure, match="WriteConflict"):
                    await here.database["perdure_jobs"].update_many({}, {"$set": {"mark": 0}}, session=session)


async def test_jobs_are_passed_by_no_longer_than_somebody_is_in_the_way():
    """Another process may have ended the transaction; then nobody is found here, and the jobs are tried at once."""
    url = fresh()
    async with store_at(url) as store, store_at(url) as other:
        await store.enqueue([job() for _ in range(3)])
        with writing_to(url, "places", dead=False):
            async with asyncio.timeout(10):
                nothing = await store.claim(claim(3))
        store._in_use().abandoned._next_look = 0.0
        async with asyncio.timeout(10):
            while await open_transactions(other):
                await other._in_use().abandoned.end()
                await asyncio.sleep(0.1)
        assert len(await store.claim(claim(3))) == 3
    assert not nothing


async def test_a_server_that_does_not_tell_is_asked_rarely(monkeypatch):
    monkeypatch.setattr(server_transactions, "_LISTED", {"nonsense": True})
    async with store_at() as store:
        looking = store._in_use().abandoned
        assert not await looking.end()
        assert looking._next_look > monotonic() + server_transactions.NOT_ALLOWED / 2
