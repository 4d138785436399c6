"""A commit that the server does not know any more: whether it took place is found out, and the caller gets an answer."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import servers
from perdure import Context, Perdure, State, StoreError
from perdure.core.clock import SECOND
from perdure.core.lifecycle import Succeeded, decide
from perdure.core.record import Hold
from perdure.storage.contract import ACCEPTED, Filter, KvWrite, Note
from perdure.storage.mongo.connection import server_clock
from perdure.storage.mongo.connection.errors import NO_SUCH_TRANSACTION
from perdure.storage.mongo.connection.server import Server
from tests.support.proxy import Proxy
from tests.support.real_servers import decline

from .helpers import claim, database_of, fresh, held, job, store_at

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


@pytest.fixture(scope="module")
def forgetful():
    """A server that can be told to answer the next commit as one that has restarted does."""
    try:
        own = servers.start("mongo", settings={"setParameter": "enableTestCommands=1"})
    except servers.NotAvailable as missing:
        decline("mongo", missing)
    with own:
        yield own


@pytest.fixture(params=[False, True], ids=["it did not take place", "it took place"])
def forget(request, forgetful, monkeypatch):
    """Have the next commit forgotten, before or after it took place."""

    def after() -> None:
        commit = Server.commit

        async def committed(server, session, retries):
            await commit(server, session, retries)
            monkeypatch.setattr(Server, "commit", commit)
            raise OperationFailure("does not match any in-progress transactions", NO_SUCH_TRANSACTION, {})

        monkeypatch.setattr(Server, "commit", committed)

    def before() -> None:
        with MongoClient(forgetful.url) as client:
            data = {"failCommands": ["commitTransaction"], "errorCode": NO_SUCH_TRANSACTION, "errorLabels": []}
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)

    return after if request.param else before


async def test_an_enqueue(forgetful, forget):
    async with store_at(forgetful.fresh()) as store:
        given = [job(), job(unique_key="k", unique_scope="active")]
        forget()
        placed = await store.enqueue(given)
        assert [(each.id, each.duplicate) for each in placed] == [(each.id, False) for each in given]
        assert await store.count(Filter()) == 2


async def test_an_exchange_claims_once(forgetful, forget):
    async with store_at(forgetful.fresh()) as store:
        first = await held(store)
        await store.enqueue([job() for _ in range(10)])
        change = decide(first, Succeeded())
        asked = claim(4)
        forget()
        answer = await store.exchange([change], asked)
        assert answer.verdicts[0].refusal is None
        assert len(answer.claimed) == 4
        assert {each.id for each in await store.recover_claim(asked.worker, asked.stamp)} == {
            each.id for each in answer.claimed
        }
        assert await store.count(Filter(states=(State.RUNNING,))) == 4


async def test_lines_of_a_log_are_written_once(forgetful, forget):
    async with store_at(forgetful.fresh()) as store:
        record = await held(store)
        hold = Hold(record.id, record.attempt, record.stamp)
        await store.note([Note(hold, lines=("one",))])
        forget()
        assert await store.note([Note(hold, lines=("two", "three"))]) == [ACCEPTED]
        assert await store.log(record.id) == ["one", "two", "three"]


async def test_a_text_that_is_written_by_its_version(forgetful, forget):
    async with store_at(forgetful.fresh()) as store:
        assert await store.kv_write([KvWrite("kind", "name", "first", version=0)]) == [True]
        forget()
        assert await store.kv_write([KvWrite("kind", "name", "second", version=1)]) == [True]
        assert [(row.text, row.version) for row in await store.kv_read("kind")] == [("second", 2)]


async def test_the_transaction_of_a_handler(forgetful, forget, request):
    """It is told as done if it is, else as undone: then it is safe to run the job again."""
    committed_answer = "it took place" in request.node.name
    async with store_at(forgetful.fresh()) as store:
        record = await held(store)
        transaction = await store.begin_for(Hold(record.id, record.attempt, record.stamp), 5_000_000)
        await transaction.enqueue([job()])
        change = decide(record, Succeeded())
        forget()
        if committed_answer:
            assert await transaction.complete(change) is ACCEPTED
        else:
            with pytest.raises(StoreError, match="run it again"):
                await transaction.complete(change)
        (ended,) = await store.get([record.id])
        assert ended is not None
        assert ended.state is (State.SUCCEEDED if committed_answer else State.RUNNING)
        assert await store.count(Filter()) == (2 if committed_answer else 1)


# ---- without any help ------------------------------------------------------------------------------
async def test_lines_that_are_cut_after_a_commit_was_passed_on():
    """The server has committed, and nobody has heard of it."""
    url = fresh()
    with Proxy(url) as proxy:
        async with store_at(proxy.url) as store:
            for number in range(12):
                given = [job() for _ in range(3)]
                proxy.break_after_questions(1 + number % 4)
                assert [each.id for each in await store.enqueue(given)] == [each.id for each in given]
            assert await store.count(Filter()) == 36


async def test_a_line_that_is_cut_while_the_clock_is_asked(monkeypatch):
    monkeypatch.setattr(server_clock, "AGAIN", -1)  # every call asks
    with Proxy(fresh()) as proxy:
        async with store_at(proxy.url) as store:
            for _ in range(4):
                given = [job()]
                proxy.break_after_questions(1)
                assert [each.id for each in await store.enqueue(given)] == [given[0].id]


async def test_kills_of_the_server_under_enqueues_and_transactions():
    """No caller and no handler hears of a forgotten transaction, and every effect is there once."""
    try:
        own = servers.start("mongo")
    except servers.NotAvailable as missing:
        decline("mongo", missing)
    if own.process is None:
        own.stop()
        pytest.skip("the server that the environment names is not ours to kill")
    with own:
        url = own.fresh()
        app = Perdure(url + "&heartbeatFrequencyMS=500&connectTimeoutMS=1000", lease=5)

        @app.task(max_attempts=1)
        async def pay(ctx: Context, n: int) -> None:
            tx = await ctx.transaction()
            paid = database_of(tx.connection.client, url)["paid"]
            await paid.insert_one({"n": n}, session=tx.connection)

        handles, stopping = [], asyncio.Event()

        async def caller(first: int) -> None:
            number = first
            while not stopping.is_set():
                handles.append(await pay.enqueue(number))
                number += 4

        async with app, app.worker(poll=0.1, concurrency=8):
            await asyncio.to_thread(_make_collection, url)
            callers = [asyncio.create_task(caller(first)) for first in range(4)]
            for _ in range(5):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(own.kill)
                await asyncio.to_thread(own.restart)
            stopping.set()
            await asyncio.gather(*callers)
            states = Counter([(await _ended(handle)) for handle in handles])
        with MongoClient(own.url) as client:
            paid = Counter(row["n"] for row in database_of(client, url)["paid"].find())
    assert set(states) == {"succeeded"}
    assert len(paid) == len(handles)
    assert set(paid.values()) == {1}


async def _ended(handle) -> str:
    async for seen in handle.watch(timeout=60):
        state = seen.state
    return str(state)


def _make_collection(url: str) -> None:
    with MongoClient(url) as client:
        database_of(client, url).create_collection("paid")


async def test_a_server_that_is_slow_to_take_the_end_does_not_make_the_transaction_late(forgetful):
    """The limit is for the handler. When it has returned, only the server can be slow."""
    async with store_at(forgetful.fresh()) as store:
        record = await held(store)
        transaction = await store.begin_for(Hold(record.id, record.attempt, record.stamp), SECOND // 2)
        with MongoClient(forgetful.url) as client:
            data = {"failCommands": ["update", "aggregate", "find"], "blockConnection": True, "blockTimeMS": 900}
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        assert await transaction.complete(decide(record, Succeeded("1"))) is ACCEPTED
        (ended,) = await store.get([record.id])
        assert ended is not None
        assert (ended.state, ended.result) == (State.SUCCEEDED, "1")
