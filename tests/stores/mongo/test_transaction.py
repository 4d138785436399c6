"""A handler's transaction on MongoDB: documents of the handler's own, and everybody who would move its job meanwhile."""

import asyncio

import pytest
from pymongo.errors import InvalidOperation

from perdure import Context, JobDead, Perdure, State
from perdure.core.clock import SECOND
from perdure.core.lifecycle import Cancelled, Succeeded, decide
from perdure.core.record import Hold
from perdure.errors import StoreError
from perdure.storage.contract import Filter, Note, Started

from .helpers import claim, database_of, fresh, held, job, store_at


async def test_documents_and_completion_are_committed_together():
    url = fresh()
    async with store_at(url) as store:
        record = await held(store)
        transaction = await store.begin_for(record.hold, 5 * SECOND)
        session = transaction.connection
        orders = database_of(session.client, url)["orders"]
        await orders.insert_one({"_id": 1}, session=session)
        (placed,) = await transaction.enqueue([job()])
        assert await orders.find_one({"_id": 1}) is None
        assert (await transaction.complete(decide(record, Succeeded("1")))).accepted
        assert [found.state for found in await store.get([record.id, placed.id])] == [State.SUCCEEDED, State.READY]
        assert await database_of(store._server.client, url)["orders"].count_documents({}) == 1


async def test_a_refused_completion_undoes_the_documents():
    url = fresh()
    async with store_at(url) as store:
        record = await held(store)
        await store.apply([decide(record, Succeeded())])
        transaction = await store.begin_for(record.hold, 5 * SECOND)
        session = transaction.connection
        await database_of(session.client, url)["orders"].insert_one({"_id": 1}, session=session)
        assert (await transaction.complete(decide(record, Succeeded("1")))).repeated
        assert await database_of(store._server.client, url)["orders"].count_documents({}) == 0


async def test_renewals_and_notes_of_the_start_do_not_undo_it():
    async with store_at() as store:
        record, other = await held(store), await held(store)
        transaction = await store.begin_for(record.hold, 5 * SECOND)
        verdicts = await store.renew([record.hold, other.hold], [Started(record.hold, 1), Started(other.hold, 2)])
        assert [verdict.accepted for verdict in verdicts] == [True, True]
        claimed = await store.exchange([decide(other, Succeeded())], claim(), [Started(record.hold, 1)])
        assert claimed.verdicts[0].accepted
        assert (await transaction.complete(decide(record, Succeeded()))).accepted


async def test_its_start_is_noted_before_it_begins():
    """Should the worker die inside, it is known that this job ran."""
    async with store_at() as store:
        record = await held(store)
        transaction = await store.begin_for(record.hold, 30 * SECOND)
        async with asyncio.timeout(15):
            while (await store.get([record.id]))[0].started_at is None:  # it does not wait for the disk
                await asyncio.sleep(0.01)
        await transaction.rollback()


async def test_a_renewal_from_another_process_passes_a_pinned_job_over():
    url = fresh()
    async with store_at(url) as store, store_at(url) as supervisor:
        records = [await held(store) for _ in range(5)]
        before = {record.id: record.leased_until for record in records}
        transaction = await store.begin_for(records[2].hold, 5 * SECOND)
        verdicts = await supervisor.renew([record.hold for record in records])
        assert all(verdict.accepted for verdict in verdicts)
        seen = await store.get([record.id for record in records])
        renewed = [record.leased_until > before[record.id] for record in seen]
        assert renewed == [True, True, False, True, True]
        assert (await transaction.complete(decide(records[2], Succeeded()))).accepted


async def test_a_cancel_waits_for_it_and_then_reads_again():
    async with store_at() as store:
        record = await held(store)
        transaction = await store.begin_for(record.hold, 5 * SECOND)
        cancel = asyncio.create_task(store.apply([decide(record, Cancelled())]))
        done, _ = await asyncio.wait([cancel], timeout=0.3)
        assert not done
        assert (await transaction.complete(decide(record, Succeeded()))).accepted
        assert not (await cancel)[0].accepted
        assert (await store.get([record.id]))[0].state is State.SUCCEEDED


async def test_progress_inside_is_refused_at_once():
    async with store_at() as store:
        record = await held(store)
        transaction = await store.begin_for(record.hold, 5 * SECOND)
        with pytest.raises(StoreError, match="tell them before it"):
            await store.note([Note(record.hold, "1")])
        await transaction.rollback()
        assert (await store.note([Note(record.hold, "1")]))[0].accepted


async def test_past_its_limit_the_session_can_write_nothing_any_more():
    url = fresh()
    async with store_at(url) as store:
        record = await held(store)
        transaction = await store.begin_for(record.hold, SECOND // 10)
        session = transaction.connection
        orders = database_of(session.client, url)["orders"]
        await orders.insert_one({"_id": 1}, session=session)
        async with asyncio.timeout(15):
            while not session.has_ended:
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidOperation):
            await orders.insert_one({"_id": 2}, session=session)
        with pytest.raises(StoreError, match=r"longer than 0\.1 s"):
            await transaction.complete(decide(record, Succeeded()))
        assert await orders.count_documents({}) == 0
        assert (await store.renew([record.hold]))[0].accepted, "the job is no longer pinned"
        assert (await store.get([record.id]))[0].leased_until > record.leased_until


async def test_it_has_no_sql():
    async with store_at() as store:
        transaction = await store.begin_transaction(SECOND)
        with pytest.raises(StoreError, match=r"session=tx\.connection"):
            await transaction.execute("select 1")
        await transaction.rollback()


async def test_a_hold_that_is_lost_is_refused_at_the_end():
    async with store_at() as store:
        record = await held(store)
        transaction = await store.begin_for(Hold(record.id, record.attempt, record.stamp + 1), SECOND)
        stale = decide(record, Succeeded())
        await store.apply([decide(record, Cancelled())])
        assert not (await transaction.complete(stale)).accepted


# ---- with a worker ---------------------------------------------------------------------------------
async def test_a_handler_writes_documents_and_jobs_with_its_end():
    url = fresh()
    app = Perdure(url)

    @app.task
    async def follow(n: int) -> None: ...

    @app.task
    async def order(ctx: Context, n: int) -> int:
        tx = await ctx.transaction()
        orders = database_of(tx.connection.client, url)["orders"]
        await orders.insert_one({"_id": n}, session=tx.connection)
        await follow.using(connection=tx, queue="later").enqueue(n)
        await asyncio.sleep(0.25)  # long enough for its start to be noted, were it not pinned
        if n == 2:
            raise ValueError("no")
        return n

    async with app:
        good = await order.enqueue(1)
        bad = await order.using(max_attempts=1).enqueue(2)
        async with app.worker(queues=["default"], poll=0.05):
            assert await good.result(timeout=20) == 1
            with pytest.raises(JobDead, match="ValueError: no"):
                await bad.result(timeout=20)
        storage = await app._runtime.storage()
        assert await storage.count(Filter(queue="later")) == 1
        orders = database_of(storage._server.client, url)["orders"]
        assert [found["_id"] async for found in orders.find()] == [1]
