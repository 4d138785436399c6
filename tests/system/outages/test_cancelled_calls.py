"""Cancelled calls never reach into a driver: whatever they were waiting for, the store answers the next ones."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest

from perdure import Perdure, Task
from perdure.storage.contract import Filter
from perdure.storage.driver_calls import DriverCalls, GivenUp
from tests.support.addresses import address
from tests.support.proxy import Proxy
from tests.support.real_servers import server
from tests.support.waiting import eventually, wait_until

from .conftest import own_server

ON_SERVERS = ["postgres", "valkey", "mongo"]
HASTE = {"mongo": "&heartbeatFrequencyMS=500&connectTimeoutMS=1000"}


def app_on(url: str) -> tuple[Perdure, Task[[int], int]]:
    app = Perdure(url, lease=20)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return app, double


# ---- one call --------------------------------------------------------------------------------------
async def test_a_call_runs_to_its_end_without_its_caller():
    calls, go_on, ended = DriverCalls(), asyncio.Event(), []

    async def call() -> None:
        await go_on.wait()
        ended.append(True)

    caller = asyncio.create_task(calls.run(call()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller], timeout=30)
    assert caller.cancelled(), "the caller does not wait for it"
    assert len(calls) == 1
    go_on.set()
    await calls.finish()
    assert ended == [True]


async def test_a_call_that_does_not_end_is_noticed_and_given_up():
    noticed = asyncio.Event()
    calls = DriverCalls(0.1, noticed.set)
    caller = asyncio.create_task(calls.run(asyncio.Event().wait()))
    await asyncio.wait_for(noticed.wait(), 10)
    calls.give_up()
    with pytest.raises(GivenUp):
        await caller


# ---- a whole store ---------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ON_SERVERS)
async def test_calls_that_are_cancelled_again_and_again_while_the_server_is_away(kind, tmp_path):
    """A task that is cancelled twice inside pymongo takes a lock of its client with it, and nobody is answered any more."""
    chance = random.Random(17)
    with Proxy(address(kind, tmp_path)) as proxy:
        app, double = app_on(proxy.url + HASTE.get(kind, ""))
        async with app:
            store = await app._runtime.storage()
            for _ in range(6):
                proxy.refuse(True)
                calls = [asyncio.create_task(store.count(Filter())) for _ in range(20)]
                await asyncio.sleep(0.7)
                await asyncio.gather(*(_cancel(call, chance) for call in calls))
                _, left = await asyncio.wait(calls, timeout=30)
                assert not left
                proxy.refuse(False)
                async with asyncio.timeout(15):
                    assert await store.count(Filter()) == 0
            await double.enqueue(1)


async def _cancel(call: asyncio.Task[int], chance: random.Random) -> None:
    await asyncio.sleep(chance.random() * 0.6)
    for _ in range(3):
        call.cancel()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ON_SERVERS)
async def test_a_worker_through_several_kills_of_its_server(kind, monkeypatch):
    """Its questions are given up quickly, so that many are cancelled while the server is away."""
    settings = {"appendfsync": "always"} if kind == "valkey" else {}
    with own_server(kind, **settings) as own:
        app, double = app_on(own.fresh() + HASTE.get(kind, ""))
        monkeypatch.setattr(type(await app._runtime.storage()), "answer_timeout", 0.3)
        async with app, app.worker(poll=0.1, concurrency=4):
            for n in range(4):
                assert await (await double.enqueue(n)).result(timeout=40) == 2 * n
                await asyncio.to_thread(own.kill)
                await asyncio.sleep(1.5)
                await asyncio.to_thread(own.restart)
            assert await (await double.enqueue(9)).result(timeout=40) == 18


@pytest.mark.parametrize("kind", ON_SERVERS)
async def test_connections_are_replaced_under_those_who_use_them(kind, tmp_path):
    """Those who wait have an error or an answer, and everything goes on, wake-ups too."""
    with Proxy(address(kind, tmp_path)) as proxy:
        safe, enqueue = app_on(proxy.url)
        app, _ = app_on(proxy.url)
        async with safe, app, app.worker(poll=20):
            assert await (await enqueue.enqueue(1)).result(timeout=20) == 2
            store = await app._runtime.storage()
            proxy.mute()
            waiting = [asyncio.create_task(store.count(Filter())) for _ in range(5)]
            await eventually(lambda: proxy.kept)
            await asyncio.wait_for(store.reconnect(), 20)
            _, left = await asyncio.wait(waiting, timeout=20)
            assert not left
            assert await store.count(Filter()) == 1
            await (await safe._runtime.storage()).reconnect()
            assert await (await enqueue.enqueue(2)).result(timeout=20) == 4, "a worker that polls seldom is woken"


async def test_a_client_of_mongodb_whose_calls_do_not_end_is_replaced(limit, caplog):
    """Also where no worker watches: in a program that only enqueues."""
    with own_server("mongo") as own:
        app, double = app_on(own.fresh() + "&heartbeatFrequencyMS=60000&connectTimeoutMS=60000")
        async with app:
            store = await app._runtime.storage()
            client = store._in_use().client
            own.freeze()
            calls = [asyncio.create_task(store.count(Filter())) for _ in range(3)]
            async with asyncio.timeout(20):
                while store._in_use().client is client:
                    await asyncio.sleep(0.05)
            own.thaw()
            _, left = await asyncio.wait(calls, timeout=10)
            assert not left
            assert await double.enqueue(1)
    assert "is replaced by a new one" in caplog.text


# ---- a handler's transaction -----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mongo"])
async def test_a_transaction_whose_beginning_is_cancelled_at_any_moment(kind, tmp_path):
    """No connection is lost, and none comes back inside a transaction."""
    app, double = app_on(address(kind, tmp_path))
    async with app:
        store = await app._runtime.storage()
        for turns in range(50):
            beginning = asyncio.create_task(store.begin_transaction(5_000_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            beginning.cancel()
            await asyncio.wait([beginning], timeout=10)
            assert beginning.done()
            if not beginning.cancelled():
                await beginning.result().rollback()
        async with asyncio.timeout(20):
            for _ in range(40):
                transaction = await store.begin_transaction(5_000_000)
                await transaction.rollback()
        await double.enqueue(1)


def _it_sleeps() -> bool:
    with psycopg.connect(server("postgres").url) as connection:
        sleeping = "select 1 from pg_stat_activity where state = 'active' and query = 'select pg_sleep(120)'"
        return connection.execute(sleeping).fetchone() is not None


async def test_a_statement_of_a_handler_that_is_cancelled(tmp_path):
    """It is ended on the server, its transaction is undone, and the connection serves the next."""
    app, _ = app_on(address("postgres", tmp_path))
    async with app:
        store = await app._runtime.storage()
        transaction = await store.begin_transaction(60_000_000)
        statement = asyncio.create_task(transaction.execute("select pg_sleep(120)"))
        await asyncio.to_thread(wait_until, _it_sleeps)
        statement.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([statement])
        assert statement.cancelled()
        async with asyncio.timeout(10):
            await transaction.rollback()
        following = await store.begin_transaction(5_000_000)
        assert await following.execute("select 1") == [(1,)]
        await following.rollback()
