"""Edges, limits and shares when several connections meet, in transactions that last, and in an older database."""

import asyncio
import json

import pytest
from pymongo import AsyncMongoClient

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Continued, Succeeded, decide
from perdure.storage.contract import PARENT_CANCELLED, Filter, KvWrite, MissingParent, QueueSettings
from perdure.storage.mongo.edges import edges, resolve_edges
from perdure.storage.mongo.upkeep import upkeep
from perdure.storage.mongo.writing import enqueue
from perdure.storage.rules.fairness import SHARE
from perdure.testing import ManualClock
from perdure.testing.conformance.tools import FORGET

from .helpers import claim, fresh, held, job, store_at

LIMITED = '[["k",3,null,null]]'


def after(*parents, **fields):
    return job(after=json.dumps([parent.id for parent in parents]), waits=len(parents), **fields)


async def settle_all(store):
    while await store.resolve_edges(500):
        pass


async def seen(store, new):
    (record,) = await store.get([new.id])
    return record


# ---- several connections ---------------------------------------------------------------------------
async def test_no_child_is_stranded_while_its_parent_ends():
    """A hundred times: one connection enqueues the child, another ends the parent. Every other parent is followed before."""
    url = fresh()
    async with store_at(url) as one, store_at(url) as other:
        await one.enqueue([job() for _ in range(100)])
        parents = await one.claim(claim(100))
        await one.enqueue([after(parent, queue="elsewhere") for parent in parents[::2]])
        children = [after(parent, run_when="finished") for parent in parents]

        async def meet(number, parent, child):
            said = Cancelled() if number % 3 == 0 else Succeeded()
            await asyncio.gather(one.enqueue([child]), other.apply([decide(parent, said)]))

        for begin in range(0, 100, 10):
            pairs = list(zip(parents, children, strict=True))[begin : begin + 10]
            await asyncio.gather(*(meet(number, *pair) for number, pair in enumerate(pairs)))
        await settle_all(one)
        rows = await one.get([child.id for child in children])
        assert {row.state for row in rows} == {State.READY}


async def test_many_who_end_at_once_release_their_child_once():
    url = fresh()
    async with store_at(url) as one, store_at(url) as other:
        await one.enqueue([job() for _ in range(60)])
        parents = await one.claim(claim(100))
        child = after(*parents)
        await one.enqueue([child])
        ends = [decide(parent, Succeeded()) for parent in parents]
        await asyncio.gather(
            *((one, other)[begin % 2].apply(ends[begin : begin + 5]) for begin in range(0, 60, 5)),
        )
        await settle_all(one)
        row = await seen(one, child)
        assert (row.state, row.waits, row.version) == (State.READY, 0, 2)


async def test_limits_hold_for_all_connections():
    """Each asks for a task of its own, so that they meet at no job, only at the limit."""
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([job(limits=LIMITED, task=f"t{number % 4}") for number in range(40)])
        running = peak = done = 0

        async def work(number):
            nonlocal running, peak, done
            async with store_at(url) as own:
                while done < 40:
                    records = await own.claim(claim(2, f"w{number}", tasks=(f"t{number}",), limited=True))
                    running += len(records)
                    peak = max(peak, running)
                    await asyncio.sleep(0.01)
                    running -= len(records)
                    await own.apply([decide(record, Succeeded()) for record in records])
                    done += len(records)

        async with asyncio.timeout(90):
            await asyncio.gather(*(work(number) for number in range(4)))
        assert peak <= 3
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == 40


async def test_more_gates_than_are_looked_at_together():
    """All of them under one key: each gets its turn, and the room is always used."""
    async with store_at() as store:
        jobs = [job(limits=f'[["all",10,null,null],["t{number}",1,null,null]]') for number in range(145)]
        await store.enqueue(jobs)
        done = set()
        while records := await store.claim(claim(99, limited=True)):
            assert len(records) == min(10, 145 - len(done))
            done |= {record.id for record in records}
            await store.apply([decide(record, Succeeded()) for record in records])
        assert done == {new.id for new in jobs}


async def test_a_claim_that_is_too_small_for_the_room_leaves_the_rest_to_be_found():
    """A key that was used up has room for many at once: whoever comes next finds the gates open."""
    async with store_at() as store:
        first = [job(limits='[["all",100,null,null]]', priority=9) for _ in range(100)]
        rest = [job(limits=f'[["all",100,null,null],["t{number}",1,null,null]]') for number in range(100)]
        await store.enqueue([*first, *rest])
        holders = await store.claim(claim(200, limited=True))
        assert len(holders) == 100
        assert await store.claim(claim(1, limited=True)) == []
        await store.apply([decide(record, Succeeded()) for record in holders])
        taken = [record for _ in range(20) for record in await store.claim(claim(5, limited=True))]
        assert {record.id for record in taken} == {new.id for new in rest}


async def test_shares_are_given_one_after_the_other():
    url, clock = fresh(), ManualClock()
    async with store_at(url, clock=clock) as one, store_at(url, clock=clock) as other:
        await one.configure(QueueSettings("q", fair=True))
        jobs = [job(queue="q", tenant="a") for _ in range(40)]
        await asyncio.gather(*((one, other)[number % 2].enqueue([new]) for number, new in enumerate(jobs)))
        await settle_all(one)
        rows = await one.get([new.id for new in jobs])
        assert {row.state for row in rows} == {State.READY}
        assert sorted(row.rank - row.run_at for row in rows) == [SHARE * number for number in range(1, 41)]


async def test_a_fan_out_and_a_fan_in_of_thousands():
    async with store_at() as store:
        root = await held(store)
        children = [after(root, queue="later") for _ in range(2_000)]
        for begin in range(0, 2_000, 500):
            await store.enqueue(children[begin : begin + 500])
        last = after(*children)
        await store.enqueue([last])
        await settle_all(store)
        assert (await store.exchange([decide(root, Succeeded())])).unresolved
        await settle_all(store)
        assert await store.count(Filter(states=(State.READY,))) == 2_000
        for _ in range(4):
            records = await store.claim(claim(500))
            await store.apply([decide(record, Succeeded()) for record in records])
        await settle_all(store)
        assert (await seen(store, last)).state is State.READY
        assert await store.resolve_edges(9) == 0


@pytest.fixture
def few_at_once(monkeypatch):
    """As if a transaction had room for a few edges only."""
    monkeypatch.setattr(enqueue, "EDGES_AT_ONCE", 10)
    for module in (edges, resolve_edges):
        monkeypatch.setattr(module, "AT_ONCE", 7)


@pytest.mark.usefixtures("few_at_once")
async def test_more_edges_than_a_transaction_has_room_for():
    url = fresh()
    async with store_at(url) as store, store_at() as other:
        await store.enqueue([job(retention=FORGET) for _ in range(40)])
        parents = await store.claim(claim(40))
        await store.apply([decide(parent, Succeeded()) for parent in parents[:5]])
        child, doomed, joined = after(*parents), after(*parents), after(*parents)
        await store.enqueue([child, doomed])
        await enqueued(store, url, [joined], commit=True)
        await settle_all(store)
        assert [(await seen(store, each)).waits for each in (child, doomed, joined)] == [35, 35, 35]

        carried = await store.export(None, 99)
        for _ in range(2):
            await other.restore(carried)
            assert await other.export(None, 99) == carried, "it arrives with all its edges, and once"

        await store.apply([decide(await seen(store, doomed), Cancelled())])
        await store.apply([decide(parent, Succeeded()) for parent in parents[5:]])
        await settle_all(store)
        assert [(await seen(store, each)).state for each in (child, joined)] == [State.READY, State.READY]
        assert await store.followers([parent.id for parent in parents]) == [[]] * 40

        await other.apply([decide(parents[7], Cancelled())])
        await settle_all(other)
        rows = [await seen(other, each) for each in (child, joined)]
        assert [(row.state, row.waits) for row in rows] == [(State.CANCELLED, 0)] * 2
        assert await other.followers([parent.id for parent in parents]) == [[]] * 40


@pytest.mark.usefixtures("few_at_once")
async def test_many_edges_are_pruned_step_by_step():
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        await store.enqueue([job(retention=FORGET) for _ in range(30)])
        parents = await store.claim(claim(40))
        child = after(*parents, retention=FORGET)
        await store.enqueue([child])
        await store.apply([decide(parent, Succeeded()) for parent in parents])
        await settle_all(store)
        clock.advance(3600)
        assert await store.prune(99) == 0, "the child has not ended"
        (record,) = await store.claim(claim(9))
        await store.apply([decide(record, Succeeded())])
        clock.advance(3600)
        pruned = [await store.prune(99) for _ in range(12)]
        assert sum(pruned) == 31
        assert await store._in_use().database["perdure_edges"].count_documents({}) == 0


# ---- upkeep ----------------------------------------------------------------------------------------
async def test_parents_that_are_needed_hide_nobody_from_a_prune(monkeypatch):
    monkeypatch.setattr(upkeep, "NEEDED", 3)
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        await store.enqueue([job(retention=FORGET) for _ in range(6)])
        *needed, free = await store.claim(claim(6))
        child = after(*needed)
        await store.enqueue([child])
        await store.apply([decide(parent, Succeeded()) for parent in needed])
        clock.advance(1)
        await store.apply([decide(free, Succeeded())])
        clock.advance(3600)
        assert sum([await store.prune(1) for _ in range(4)]) == 1
        assert await store.get([free.id]) == [None]
        (record,) = await store.claim(claim())
        await store.apply([decide(record, Succeeded())])
        clock.advance(3600)
        assert sum([await store.prune(9) for _ in range(2)]) == 5


async def test_upkeep_sends_a_lost_limit_wakeup_again():
    """Nothing is known that loses one; but a gate must not stay shut for ever."""
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        await store.enqueue([job(limits='[["k",1,null,null]]') for _ in range(2)])
        (first,) = await store.claim(claim(9, limited=True))
        await store.apply([decide(first, Succeeded())])
        await store._in_use().database["perdure_notes"].delete_many({"_id": {"$regex": "^wakeup/"}})
        assert await store.claim(claim(9, limited=True)) == []
        clock.advance(3600)
        await store.prune(9)
        assert len(await store.claim(claim(9, limited=True))) == 1


async def test_upkeep_forgets_what_counts_no_longer():
    """Starts that have left their window, accounts below the floor, gates at which nobody stands."""
    clock = ManualClock()
    async with store_at(clock=clock) as store:
        await store.configure(QueueSettings("q", fair=True))
        for tenant in ("idle", "busy", "busy", "busy"):
            await store.enqueue([job(queue="q", tenant=tenant)])
            for record in await store.claim(claim(9)):
                await store.apply([decide(record, Succeeded())])
        await store.enqueue([job(limits='[["r",null,5,1000000]]'), *(job(queue="q", tenant="busy") for _ in range(9))])
        await store.claim(claim(9, limited=True))
        await store.claim(claim(8))
        await store.enqueue([job(queue="q", tenant="new")])
        clock.advance(8 * 86_400)
        await store.prune(9)
        assert await store.claim(claim(9, limited=True)) == []
        database = store._in_use().database
        notes = [note["_id"] for note in await database["perdure_notes"].find({}).to_list()]
        kinds = sorted(id.partition("/")[0] for id in notes)
        assert kinds == ["account", "account", "floor", "wakeup", "wakeup+"]
        assert not any("idle" in id for id in notes)
        assert await database["perdure_gates"].count_documents({}) == 0


# ---- a handler's transaction -----------------------------------------------------------------------
async def test_what_follows_from_a_handlers_transaction():
    """Jobs that wait, that share, and that go on with the chain, all by the commit."""
    async with store_at() as store:
        await store.configure(QueueSettings("q", fair=True))
        parent, other = await held(store), await held(store)
        child = after(parent)
        await store.enqueue([child])
        transaction = await store.begin_for(parent.hold, 5 * SECOND)
        inside, fair, following = after(parent, other), job(queue="q"), job(chain_id=parent.id)
        await transaction.enqueue([inside, fair])
        with pytest.raises(MissingParent):
            await transaction.enqueue([after(job())])
        assert (await transaction.complete(decide(parent, Continued((following,))))).accepted
        await settle_all(store)
        assert await store.followers([following.id]) == [sorted([child.id, inside.id])]
        assert (await seen(store, fair)).state is State.READY
        assert (await seen(store, fair)).rank != (await seen(store, fair)).run_at
        (record,) = [each for each in await store.claim(claim(9)) if each.id == following.id]
        await store.apply([decide(record, Succeeded()), decide(other, Succeeded())])
        assert [(await seen(store, each)).state for each in (child, inside)] == [State.READY, State.READY]


async def test_a_job_in_its_handlers_transaction_keeps_nobody_waiting():
    """Its handler enqueues beside the transaction, and writes kv entries."""
    async with store_at() as store:
        parent = await held(store)
        transaction = await store.begin_for(parent.hold, 30 * SECOND)
        child = after(parent)
        async with asyncio.timeout(15):
            await store.enqueue([child])
            assert await store.kv_write([KvWrite("step", "a", "1", hold=parent.hold)]) == [True]
        assert (await transaction.complete(decide(parent, Succeeded()))).accepted
        await settle_all(store)
        assert (await seen(store, child)).state is State.READY


# ---- a caller's transaction ------------------------------------------------------------------------
async def enqueued(store, url, jobs, *, commit):
    """Enqueue in a session of one's own."""
    async with AsyncMongoClient(url) as client, client.start_session() as session:
        await session.start_transaction()
        await store.caller_session(jobs).enqueue_async(session)
        await (session.commit_transaction() if commit else session.abort_transaction())


@pytest.mark.parametrize("commit", [True, False])
async def test_followers_limits_and_shares_in_a_callers_transaction(commit):
    url = fresh()
    async with store_at(url) as store:
        await store.configure(QueueSettings("q", fair=True))
        done, parent = await held(store), await held(store)
        await store.apply([decide(done, Succeeded())])
        early, late, orphan = after(parent), after(done), after(job())
        limited, fair, both = job(limits=LIMITED), job(queue="q"), after(done, queue="q", delay=9 * SECOND)
        jobs = [early, late, orphan, limited, fair, both]
        await enqueued(store, url, jobs, commit=commit)
        await store.apply([decide(parent, Succeeded())])
        await settle_all(store)
        rows = await store.get([new.id for new in jobs])
        if not commit:
            assert rows == [None] * 6
            assert await store.claim(claim(9, limited=True)) == []
            return
        released = State.READY
        assert [row.state for row in rows] == [released, released, State.CANCELLED, released, released, State.SCHEDULED]
        assert rows[2].reason == PARENT_CANCELLED
        assert [row.rank == row.run_at for row in rows] == [True, True, True, True, False, False]
        assert [record.id for record in await store.claim(claim(9, limited=True))] == [limited.id]


async def test_a_parent_that_ends_before_the_caller_commits():
    """The caller's transaction has not seen the end, and the end not the child."""
    url = fresh()
    async with store_at(url) as store, AsyncMongoClient(url) as client:
        parent = await held(store)
        child = after(parent)
        async with client.start_session() as session:
            await session.start_transaction()
            await store.caller_session([child]).enqueue_async(session)
            await store.apply([decide(parent, Succeeded())])
            await session.commit_transaction()
        assert (await seen(store, child)).state is State.BLOCKED
        await settle_all(store)
        assert (await seen(store, child)).state is State.READY
