"""The memory store beyond the contract: one object for all loops and threads of an app."""

import asyncio
import threading

import pytest

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.errors import StoreError
from perdure.storage.contract import Claim, EnqueueResult, Filter, QueueSettings, Want
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock
from perdure.testing.conformance.tools import assert_accepted, claim, enqueue_and_claim, job, unique


def in_threads(*works):
    """Run each coroutine function in a thread and a loop of its own."""
    failed = []

    def live(work):
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=live, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed


def test_loops_and_threads_share_it():
    store = MemoryStorage()
    ended = []

    async def produce():
        for _ in range(50):
            await store.enqueue([job(), unique("active", "one", queue="keyed")])

    async def consume():
        idle = 0
        while idle < 200:
            records = await store.claim(Claim("w", new_stamp(), (Want(7, queues=("default",)),)))
            verdicts = await store.apply([decide(record, Succeeded()) for record in records])
            assert all(verdict.accepted for verdict in verdicts)
            ended.extend(record.id for record in records)
            idle = 0 if records else idle + 1
            await asyncio.sleep(0)

    in_threads(produce, produce, consume, consume)
    in_threads(consume)
    assert len(ended) == len(set(ended)) == 100
    assert asyncio.run(store.count(Filter(queue="keyed"))) == 1


def test_listeners_are_woken_in_their_own_threads():
    store = MemoryStorage()
    listening = threading.Barrier(3)
    woken = []

    async def listen():
        heard = asyncio.Event()

        def wake():
            woken.append(threading.get_ident())
            heard.set()

        stop = store.listen("ready", wake)
        await asyncio.to_thread(listening.wait)
        await asyncio.wait_for(heard.wait(), 10)
        assert woken.count(threading.get_ident()) >= 1
        stop()

    async def enqueue():
        await asyncio.to_thread(listening.wait)
        await store.enqueue([job()])

    in_threads(listen, listen, enqueue)
    assert len(set(woken)) == 2


def test_a_listener_whose_loop_is_closed_hurts_nobody():
    store = MemoryStorage()

    async def listen():
        store.listen("ready", lambda: None)

    asyncio.run(listen())
    assert asyncio.run(store.enqueue([job()]))[0].duplicate is False
    assert store._listeners == []


async def test_wake_ups_that_are_under_way_are_not_repeated():
    store = MemoryStorage()
    woken = []
    store.listen("ready", lambda: woken.append(1))
    for _ in range(50):
        await store.enqueue([job()])
    await asyncio.sleep(0)
    assert woken == [1]


async def test_a_listener_hears_only_its_queues():
    store = MemoryStorage()
    woken = []
    store.listen("ready", lambda: woken.append(1), frozenset({"q"}))
    await store.enqueue([job(), job(delay=SECOND)])
    await asyncio.sleep(0)
    assert woken == []
    await store.enqueue([job(queue="q", delay=SECOND)])  # a worker that sleeps has to learn when this is due
    await asyncio.sleep(0)
    assert woken == [1]


async def test_a_rolled_back_transaction_wakes_nobody():
    store = MemoryStorage()
    await enqueue_and_claim(store)
    await asyncio.sleep(0)
    woken = []
    store.listen("ready", lambda: woken.append("ready"))
    store.listen("changed", lambda: woken.append("changed"))
    tx = await store.begin_transaction(SECOND)
    await tx.enqueue([job()])
    await tx.rollback()
    await asyncio.sleep(0)
    assert woken == []


async def test_a_begin_that_is_cancelled_gives_its_turn_away():
    store = MemoryStorage()
    first = await store.begin_transaction(SECOND)
    waiting = [asyncio.create_task(store.begin_transaction(SECOND)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await first.rollback()
    waiting[1].cancel()  # its turn may have come already
    last = await asyncio.wait_for(waiting[2], 10)
    assert await last.execute("select 1") == [(1,)]
    await last.rollback()
    assert [task.cancelled() for task in waiting] == [True, True, False]


def test_transactions_of_several_threads_take_turns():
    store = MemoryStorage()
    asyncio.run(_table(store))

    async def count_up():
        for _ in range(20):
            record = await enqueue_and_claim(store, queue=threading.current_thread().name)
            tx = await store.begin_transaction(10 * SECOND)
            ((n,),) = await tx.execute("select coalesce(max(n), 0) from t")
            await asyncio.sleep(0)
            await tx.execute("insert into t values (?)", (n + 1,))
            assert_accepted(await tx.complete(decide(record, Succeeded())), "a completion")

    async def alone():
        for _ in range(20):
            tx = await store.begin_transaction(10 * SECOND)
            ((n,),) = await tx.execute("select coalesce(max(n), 0) from t")
            await asyncio.sleep(0)
            await tx.execute("insert into t values (?)", (n + 1,))
            await tx.rollback()

    in_threads(count_up, alone, alone)
    assert asyncio.run(_rows(store)) == [(n,) for n in range(1, 21)]


@pytest.mark.parametrize("met", ["key", "depth"])
async def test_jobs_that_met_others_meanwhile_undo_the_transaction(met):
    store = MemoryStorage()
    await store.configure(QueueSettings("q", max_depth=1))
    await _table(store)
    record = await enqueue_and_claim(store)
    tx = await store.begin_transaction(SECOND)
    await tx.execute("insert into t values (1)")
    inside, outside = (
        (unique("active", queue="q"), unique("active")) if met == "key" else (job(queue="q"), job(queue="q"))
    )
    assert await tx.enqueue([inside]) == [EnqueueResult(inside.id)]
    await store.enqueue([outside])
    with pytest.raises(StoreError, match="run it again"):
        await tx.complete(decide(record, Succeeded()))
    assert await store.get([inside.id]) == [None]
    assert await _rows(store) == []
    row = (await store.get([record.id]))[0]
    assert row is not None
    assert row.state is State.RUNNING


async def test_no_sql_for_callers():
    store = MemoryStorage()
    with pytest.raises(StoreError):
        store.caller_statements([job()])
    durability = await store.durability()
    assert durability.grade == "D"


async def test_closing_keeps_what_other_loops_need():
    store = MemoryStorage()
    new = job()
    await store.enqueue([new])
    await store.close()
    await store.open()
    assert [record.id for record in await claim(store)] == [new.id]


async def test_what_cannot_run_costs_a_claim_nothing():
    clock = ManualClock()
    store = MemoryStorage(clock)
    await store.enqueue([job(task="other", priority=9) for _ in range(5_000)])
    await store.enqueue([job(queue="held", priority=9) for _ in range(5_000)])
    await store.pause("held", True)
    mine = job()
    await store.enqueue([mine])
    looked = []
    take = store._rows._lanes.take

    def watched(want, limit, paused, fits, *, alone):
        return take(want, limit, paused, lambda id: looked.append(id) or fits(id), alone=alone)

    store._rows._lanes.take = watched
    assert [record.id for record in await claim(store, 5, tasks=("task",))] == [mine.id]
    assert looked == [mine.id]


async def _table(store):
    record = await enqueue_and_claim(store, queue="table")
    tx = await store.begin_transaction(SECOND)
    await tx.execute("create table t (n integer)")
    assert_accepted(await tx.complete(decide(record, Succeeded())), "a completion")


async def _rows(store):
    tx = await store.begin_transaction(SECOND)
    rows = await tx.execute("select n from t order by n")
    await tx.rollback()
    return rows
