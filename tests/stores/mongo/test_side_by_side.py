"""Claims that are under way together take different jobs, and nobody is held up by one that never ends."""

import asyncio
from time import monotonic

from pymongo import AsyncMongoClient

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import success_of
from perdure.storage.contract import Claim, Want
from perdure.storage.mongo.claiming import claim_reservations
from perdure.storage.mongo.claiming.claim_positions import IN_ORDER
from perdure.storage.mongo.claiming.claim_reservations import ClaimReservations
from perdure.storage.mongo.connection import operations
from perdure.storage.mongo.connection.errors import Conflict

from .helpers import claim, database_of, fresh, job, store_at


def _ends(step):
    return isinstance(step, operations.Update) and "succeeded" in str(step.statements)


async def test_one_that_began_before_another_was_committed_takes_other_jobs(monkeypatch):
    """Its snapshot still shows the places of what the other has taken."""
    begun, committed, conflicts = asyncio.Event(), asyncio.Event(), []
    monkeypatch.setattr(ClaimReservations, "conflict", conflicts.append)
    take = operations._take

    async def step_taken(step, database, session):
        came = await take(step, database, session)
        if _ends(step):
            begun.set()
            await committed.wait()
        return came

    async with store_at() as store:
        await store.enqueue([job() for _ in range(21)])
        (ended,) = await store.claim(claim(1))
        server = store._in_use()
        commit = server.commit

        async def committed_late(session, retries):
            await begun.wait()
            await commit(session, retries)

        monkeypatch.setattr(operations, "_take", step_taken)
        monkeypatch.setattr(server, "commit", committed_late)
        first = asyncio.create_task(store.exchange([], claim(10)))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.exchange([success_of(ended, None, None)], claim(10)))
        one = (await first).claimed
        committed.set()
        other = (await second).claimed
    assert not conflicts
    assert len({record.id for record in [*one, *other]}) == 20


async def test_what_another_failed_to_take_is_taken(monkeypatch):
    async with store_at() as store:
        await store.enqueue([job() for _ in range(5)])
        server = store._in_use()
        failing, failed = asyncio.Event(), asyncio.Event()

        async def no_commit(session, retries):
            failing.set()
            await failed.wait()
            raise Conflict("nothing of it was done")

        async def trying():
            with store._exchanges._beside_others(None) as scope:
                await store._exchanges._attempt(scope, [], claim(5), [], iter([None]))

        monkeypatch.setattr(server, "commit", no_commit)
        first = asyncio.create_task(trying())
        await failing.wait()
        monkeypatch.undo()
        with store._exchanges._beside_others(None) as scope:
            assert len(scope.others()) == 5
            failed.set()
            await asyncio.wait([first])
            assert not scope.others()
        assert isinstance(first.exception(), Conflict)
        assert len(await store.claim(claim(5))) == 5


async def test_a_claimer_that_died_before_its_commit_holds_nobody_up(monkeypatch):
    """The server keeps its transaction, and with it the best jobs, for a minute; then they are taken as well."""
    url = fresh()
    async with store_at(url) as store, store_at(url) as other, AsyncMongoClient(url) as client:
        await store.enqueue([job() for _ in range(120)])
        places = database_of(client, url)["perdure_places"]
        best = [place["_id"] async for place in places.find({}).sort(IN_ORDER).limit(30)]
        async with client.start_session() as dead, await dead.start_transaction():
            await places.delete_many({"_id": {"$in": best}}, session=dead)
            async with asyncio.timeout(10):
                one = await store.claim(claim(4))
                two = await other.claim(claim(4))
                three = await store.claim(claim(2))
            await dead.abort_transaction()
        monkeypatch.setattr(store._exchanges, "_reservations", ClaimReservations())
        rest = await store.claim(claim(120))
    assert [len(one), len(two), len(three)] == [4, 4, 2]
    assert len(rest) == 110
    assert [record.id for record in rest[:30]] == best


async def test_jobs_that_were_passed_by_are_looked_at_again_soon(monkeypatch):
    """Where there are no others, the claimer is told to come back, and not in a hurry."""
    url = fresh()
    async with store_at(url) as store, AsyncMongoClient(url) as client:
        await store.enqueue([job() for _ in range(3)])
        places = database_of(client, url)["perdure_places"]
        async with client.start_session() as dead, await dead.start_transaction():
            await places.delete_many({}, session=dead)
            async with asyncio.timeout(10):
                nothing = await store.exchange([], claim(3))
            await dead.abort_transaction()
        monkeypatch.setattr(claim_reservations, "monotonic", lambda: monotonic() + claim_reservations.SKIP_FOR)
        assert len(await store.claim(claim(3))) == 3
    assert not nothing.claimed
    assert nothing.next_due == claim_reservations.LOOK_LATER


async def test_a_want_for_which_nothing_is_left_asks_nothing(monkeypatch):
    asked = []
    take = operations._take

    async def noting(step, database, session):
        asked.append((type(step).__name__, step.collection))
        return await take(step, database, session)

    async with store_at() as store:
        await store.enqueue([job() for _ in range(6)])
        await store.claim(claim(1))
        monkeypatch.setattr(operations, "_take", noting)
        wants = (Want(3), Want(4))
        taken = await store.claim(Claim("w1", new_stamp(), wants))
        looked = asked.count(("Find", "places"))
        await store.enqueue([job() for _ in range(2)])
        asked.clear()
        last = await store.claim(Claim("w1", new_stamp(), wants))
    assert [len(taken), len(last)] == [5, 2]
    assert looked == 1
    assert ("Find", "places") not in asked
    assert asked.count(("Update", "jobs")) == asked.count(("Delete", "places")) == 1
