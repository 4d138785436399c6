"""A handler's transaction on SQLite."""

import asyncio

import pytest

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.errors import StoreError
from perdure.storage.contract import Filter

from .helpers import claim, job, store_at


@pytest.fixture(params=["sqlite", "sqlite+apsw", "memory"])
def where(request, tmp_path):
    if request.param == "sqlite+apsw":
        pytest.importorskip("apsw")
    if request.param == "memory":
        return {"path": ":memory:"}
    return {"path": tmp_path / "jobs.db", "scheme": request.param}


async def held(store):
    await store.enqueue([job()])
    return (await store.exchange((), claim())).claimed[0]


async def test_rows_and_completion_are_committed_together(where):
    async with store_at(**where) as store:
        record = await held(store)
        transaction = await store.begin_transaction(5 * SECOND)
        await transaction.execute("create table orders (id integer, name text)")
        await transaction.execute("insert into orders values (?, ?)", (1, "a"))
        transaction.connection.execute("insert into orders values (2, 'b')")
        (placed,) = await transaction.enqueue([job()])
        assert await transaction.execute("select name from orders order by id") == [("a",), ("b",)]
        assert (await transaction.complete(decide(record, Succeeded("1")))).accepted
        assert [found.state for found in await store.get([record.id, placed.id])] == [State.SUCCEEDED, State.READY]
        check = await store.begin_transaction(5 * SECOND)
        assert await check.execute("select count(*) from orders") == [(2,)]
        await check.rollback()
        await check.rollback()


async def test_a_refused_completion_undoes_all(where):
    async with store_at(**where) as store:
        record = await held(store)
        await store.apply([decide(record, Succeeded())])
        transaction = await store.begin_transaction(5 * SECOND)
        await transaction.execute("create table orders (id integer)")
        await transaction.enqueue([job()])
        assert (await transaction.complete(decide(record, Succeeded("1")))).repeated
        with pytest.raises(StoreError, match="over: its completion was refused"):
            await transaction.execute("select 1")
        assert await store.count(Filter()) == 1


async def test_it_is_undone_when_it_takes_too_long(where):
    async with store_at(**where) as store:
        record = await held(store)
        transaction = await store.begin_transaction(SECOND // 20)
        await transaction.execute("create table orders (id integer)")
        # other writes wait behind it, and no longer than it may take
        await asyncio.wait_for(store.enqueue([job()]), 20)
        with pytest.raises(StoreError, match=r"took longer than 0\.05 s"):
            await transaction.complete(decide(record, Succeeded()))
        assert (await store.get([record.id]))[0].state is State.RUNNING


async def test_what_commits_by_itself_is_found_out(where):
    """executescript of the standard library commits before it begins."""
    if where.get("scheme") == "sqlite+apsw":
        pytest.skip("apsw has no executescript")
    async with store_at(**where) as store:
        record = await held(store)
        transaction = await store.begin_transaction(5 * SECOND)
        transaction.connection.executescript("create table orders (id integer);")
        with pytest.raises(StoreError, match="ended by the handler"):
            await transaction.complete(decide(record, Succeeded("1")))
        assert (await store.get([record.id]))[0].state is State.RUNNING


async def test_an_error_of_a_statement_leaves_it_open(where):
    async with store_at(**where) as store:
        transaction = await store.begin_transaction(5 * SECOND)
        with pytest.raises(StoreError, match="no such table: nowhere"):
            await transaction.execute("select * from nowhere")
        assert await transaction.execute("select 1") == [(1,)]
        await transaction.rollback()


async def test_a_caller_cancelled_while_waiting_for_it_leaves_no_lock(where):
    async with store_at(**where) as store:
        first = await store.begin_transaction(60 * SECOND)
        waiting = asyncio.ensure_future(store.begin_transaction(60 * SECOND))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        await first.rollback()
        await asyncio.wait_for(store.enqueue([job()]), 20)


async def test_a_store_closed_over_an_open_transaction_ends_it(where):
    async with store_at(**where) as store:
        transaction = await store.begin_transaction(SECOND // 10)
        await transaction.execute("create table orders (id integer)")
