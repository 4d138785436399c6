"""Enqueue in the caller's own session: committed → there; rolled back → nothing, not even a signal."""

import asyncio

import pymongo
import pytest
from pymongo import AsyncMongoClient, MongoClient, WriteConcern

from perdure import InvalidCall, Perdure, QueueFull, StoreError, Unique, chain
from perdure.storage.contract import Filter
from tests.support.faults import Claims

from .helpers import database_of, fresh


@pytest.fixture
def url():
    return fresh()


@pytest.fixture
def app(url):
    return Perdure(url)


@pytest.fixture
def task(app):
    @app.task
    async def task(a: int = 0) -> int:
        return a

    return task


@pytest.fixture
def client(url):
    with MongoClient(url) as client:
        yield client


async def count(app, **fields):
    return await (await app._runtime.storage()).count(Filter(**fields))


async def test_committed_is_there_and_rolled_back_is_not(app, task, client, url):
    async with app:
        await app.jobs.count()
        orders = database_of(client, url)["orders"]
        orders.insert_one({"_id": 0})
        with client.start_session() as session:
            with session.start_transaction():
                orders.insert_one({"_id": 1}, session=session)
                handle = await task.using(connection=session).enqueue(1)
                assert await app.jobs.get(handle.id) is None
            assert (await app.jobs.get(handle.id)).payload == '{"a":1}'
            session.start_transaction()
            undone = await task.using(connection=session).enqueue(2)
            session.abort_transaction()
            assert await app.jobs.get(undone.id) is None
        assert await count(app) == 1


async def test_a_list_is_one_call(app, task, client):
    async with app:
        await app.jobs.count()
        with client.start_session() as session, session.start_transaction():
            handles = await app.enqueue([task.call(n) for n in range(20)], connection=session)
        assert len({handle.id for handle in handles}) == 20
        assert await count(app) == 20


async def test_an_asynchronous_session(app, task, url):
    async with app, AsyncMongoClient(url) as client:
        await app.jobs.count()
        async with client.start_session() as session:
            async with await session.start_transaction():
                handle = await task.using(connection=session).enqueue(1)
            assert await app.jobs.get(handle.id) is not None


def test_the_blocking_form_runs_in_the_callers_thread(app, task, client):
    assert app.jobs.sync.count() == 0
    with client.start_session() as session, session.start_transaction():
        handle = task.using(connection=session).sync.enqueue(3)
    assert app.jobs.sync.get(handle.id) is not None
    app.sync.close()


def test_a_blocking_enqueue_takes_no_asynchronous_session(app, task, url):
    async def make():
        client = AsyncMongoClient(url)
        return client, client.start_session()

    _client, session = asyncio.run(make())
    assert app.jobs.sync.count() == 0
    with pytest.raises(InvalidCall, match="event loop"):
        task.using(connection=session).sync.enqueue(3)
    app.sync.close()


async def test_a_worker_hears_of_the_commit_and_not_of_a_rollback(app, task, client, url, monkeypatch):
    """The poll is far away: only the signal in the transaction can wake it."""
    async with app:
        claims = Claims(await app._runtime.storage(), monkeypatch)
        async with app.worker(poll=60, queues=["default"]):
            await claims.cease()
            with client.start_session() as session:
                with session.start_transaction():
                    handle = await task.using(connection=session).enqueue(5)
                assert await handle.result(timeout=10) == 5
                session.start_transaction()
                await task.using(connection=session).enqueue(6)
                session.abort_transaction()
        assert database_of(client, url)["perdure_signals"].count_documents({"by": None}) == 1


async def test_keys_inside(app, task, client):
    async with app:
        owner = await task.using(unique=Unique(scope="active"), key="k").enqueue(1)
        with client.start_session() as session, session.start_transaction():
            unique = task.using(connection=session, unique=Unique(scope="active"), key="k")
            assert (await unique.enqueue(2)).id == owner.id
            forever = task.using(connection=session, unique=Unique(scope="any"), key="x")
            first = await forever.enqueue(1)
            assert (await forever.enqueue(2)).id == first.id
        assert await count(app) == 2


async def test_a_conflict_is_the_callers_to_repeat(app, task, client):
    """Two transactions that want one key: the second fails with the driver's own error, whose label says that it may be
    repeated, as `with_transaction` does."""
    async with app:
        await app.jobs.count()
        unique = task.using(unique=Unique(scope="active"), key="k")
        with client.start_session() as first, client.start_session() as second:
            first.start_transaction()
            owner = await unique.using(connection=first).enqueue(1)
            second.start_transaction()
            with pytest.raises(pymongo.errors.PyMongoError) as conflict:
                await unique.using(connection=second).enqueue(2)
            assert conflict.value.has_error_label("TransientTransactionError")
            first.commit_transaction()

            second.abort_transaction()
            second.start_transaction()
            assert (await unique.using(connection=second).enqueue(2)).id == owner.id
            second.commit_transaction()


async def test_a_full_queue(app, task, client):
    async with app:
        await app.queues.configure("small", max_depth=1)
        await task.using(queue="small").enqueue(1)
        with client.start_session() as session, session.start_transaction():
            with pytest.raises(QueueFull):
                await task.using(queue="small", connection=session).enqueue(2)


@pytest.mark.parametrize("policy", ["reject", "wait", "drop"])
@pytest.mark.parametrize("scope", ["waiting", "active", "any", "window"])
async def test_a_duplicate_needs_no_room(app, task, client, policy, scope):
    """As outside a transaction: who stands for a job is found before its room is looked for."""
    async with app:
        await app.queues.configure("small", max_depth=1, on_full=policy)
        once = task.using(queue="small", unique=Unique("k", scope=scope, window=60 if scope == "window" else None))
        owner = await once.enqueue(1)
        with client.start_session() as session, session.start_transaction():
            joined = once.using(connection=session)
            listed, _ = await app.enqueue([once.call(3), task.call(4)], connection=session)
            for again in [await joined.enqueue(2), listed]:
                assert (again.id, again.duplicate, again.dropped) == (owner.id, True, False)
        assert await count(app) == 2


async def test_a_full_queue_that_drops(app, task, client):
    async with app:
        await app.queues.configure("clicks", max_depth=2, on_full="drop", drop_below=5)
        await task.using(queue="clicks").enqueue()
        low, high = task.using(queue="clicks"), task.using(queue="clicks", priority=5)
        with client.start_session() as session, session.start_transaction():
            handles = await app.enqueue([low.call(), low.call(), task.call()], connection=session)
            assert [job.dropped for job in handles] == [False, True, False]
            with pytest.raises(QueueFull, match="nothing waits"):
                await app.enqueue([low.call(), high.call()], connection=session)
            with pytest.raises(QueueFull, match="another of this enqueue waits for"):
                await app.enqueue(chain(low.call(), task.call()), connection=session)
        assert await count(app, queue="clicks") == 2
        assert await count(app) == 3


async def test_a_session_in_no_transaction_is_refused(app, task, client):
    async with app:
        await app.jobs.count()
        with client.start_session() as session:
            with pytest.raises(InvalidCall, match="in no transaction"):
                await task.using(connection=session).enqueue(1)
        with pytest.raises(InvalidCall, match="has ended"):
            await task.using(connection=session).enqueue(1)


async def test_another_server_is_refused(app, task, client, url):
    async with app:
        await app.jobs.count()
        meta = database_of(client, url)["perdure_meta"]
        storage = await app._runtime.storage()
        storage._identity = "of another"
        with client.start_session() as session, session.start_transaction():
            with pytest.raises(StoreError, match="another server"):
                await task.using(connection=session).enqueue(1)
        assert meta.find_one({"_id": "schema"})["identity"] != "of another"


async def test_another_kind_of_store_is_refused(client, tmp_path):
    app = Perdure(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def task() -> None: ...

    async with app:
        await app.jobs.count()
        with client.start_session() as session, session.start_transaction():
            with pytest.raises(StoreError, match="the app's store is SQLite"):
                await task.using(connection=session).enqueue()


async def test_a_connection_of_sql_is_refused(app, task):
    import sqlite3

    connection = sqlite3.connect(":memory:")
    try:
        async with app:
            await app.jobs.count()
            with pytest.raises(StoreError, match="ClientSession"):
                await task.using(connection=connection).enqueue(1)
    finally:
        connection.close()


async def test_a_caller_that_waits_for_nobody_is_warned_of_once(app, task, client, caplog):
    async with app:
        await app.jobs.count()
        for n in range(2):
            with client.start_session() as session, session.start_transaction(write_concern=WriteConcern(1)):
                await task.using(connection=session).enqueue(n)
    told = [record for record in caplog.records if "majority" in record.message]
    assert len(told) == 1
