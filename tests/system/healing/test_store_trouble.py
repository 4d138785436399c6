"""Trouble of the store under a handler is not charged to its job: the job goes back free of charge, and nothing is claimed
until the store works again."""

from __future__ import annotations

import asyncio
import sqlite3

import psycopg
import pytest

import servers
from perdure import Backoff, Context, Item, JobDead, Perdure, State, StoreError
from perdure.errors import StoreUnavailable
from perdure.storage.contract import Filter
from perdure.storage.mongo.connection import server as mongo_server
from perdure.storage.postgres.connection import server as postgres_server
from perdure.storage.redis.connection import client as redis_client
from perdure.storage.sqlite.connection import busy as sqlite_busy
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.faults import Fault
from tests.support.proxy import Proxy
from tests.support.real_servers import decline

ONCE = {"max_attempts": 1, "backoff": Backoff.fixed(0.01)}  # a single failure would make a dead letter


def trouble(store) -> StoreUnavailable:
    return StoreUnavailable("the server cannot be reached").at(store.place)


async def free_of_charge(app, handle, attempts: tuple[int, ...] = (2,)) -> None:
    await handle.result(timeout=20)
    job = await app.jobs.get(handle.id)
    assert (job.state, job.failures, job.losses) == (State.SUCCEEDED, 0, 0)
    assert job.attempt in attempts
    assert job.errors == ()


# ---- every verb of a handler, on every store -------------------------------------------------------
VERBS = {
    "progress": ("note", lambda ctx, task: ctx.progress(1)),
    "log": ("note", lambda ctx, task: ctx.log("a line")),
    "step": ("kv_write", lambda ctx, task: ctx.step("one", int)),
    "replay": ("kv_read", lambda ctx, task: ctx.step("two", int)),
    "enqueue": ("enqueue", lambda ctx, task: task.enqueue()),
    "transaction": ("begin_for", lambda ctx, task: ctx.transaction()),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_that_the_store_fails(app, store, verb, monkeypatch):
    if store == "valkey" and verb == "transaction":
        pytest.skip("it has no transactions")
    of_store, call = VERBS[verb]

    @app.task
    async def other() -> None: ...

    @app.task(**ONCE)
    async def work(ctx: Context) -> None:
        if ctx.job.attempt == 1:
            fault.left = [trouble(storage)]
        await call(ctx, other)

    async with app:
        storage = await app._runtime.storage()
        of_steps = {"step": lambda writes: writes[0].kind == "step", "replay": "step".__eq__}
        async with app.worker(poll=0.05):
            fault = Fault(storage, of_store, monkeypatch, when=of_steps.get(verb))
            handle = await work.enqueue()
            await free_of_charge(app, handle)


async def test_a_group_of_errors_in_threads_and_in_batches(app, monkeypatch):
    """Wherever the handler runs, and also if a TaskGroup carries the error."""
    seen = set()

    @app.task(**ONCE)
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.progress(1))
            tasks.create_task(asyncio.sleep(0))

    @app.task(**ONCE)
    def threaded(ctx: Context) -> None:
        ctx.sync.progress(1)

    @app.batch_task(size=2, wait=0.01, **ONCE)
    async def together(items: list[Item[int]]) -> None:
        if "together" not in seen:
            seen.add("together")
            raise trouble(storage)

    async with app:
        storage = await app._runtime.storage()
        async with app.worker(poll=0.05):
            for task, arguments in ((grouped, ()), (threaded, ())):
                fault = Fault(storage, "note", monkeypatch, trouble(storage))
                await free_of_charge(app, await task.enqueue(*arguments))
                assert not fault.left
            await free_of_charge(app, await together.enqueue(1))


async def test_what_is_the_handlers_own_failure(app, monkeypatch):
    """The trouble of another store, an error beside the store's, and a StoreError of another kind."""

    @app.task(**ONCE)
    async def work(how: str) -> None:
        if how == "another store":
            raise StoreUnavailable("it cannot be reached").at("postgresql://elsewhere")
        if how == "a mistake beside":
            raise ExceptionGroup("both", [trouble(storage), ValueError("a mistake")])
        raise StoreError("a statement in it failed")

    async with app:
        storage = await app._runtime.storage()
        async with app.worker(poll=0.05):
            for how in ("another store", "a mistake beside", "another kind"):
                handle = await work.enqueue(how)
                with pytest.raises(JobDead):
                    await handle.result(timeout=10)
                assert (await app.jobs.get(handle.id)).failures == 1


async def test_nothing_is_claimed_until_the_store_works(app, store, monkeypatch):
    """The worker's own exchanges work all the while."""
    began = []

    @app.task(**ONCE)
    async def work(ctx: Context, n: int) -> int:
        began.append(n)
        if len(began) == 1:
            tried.left = [trouble(storage)] * 4
            raise trouble(storage)
        return n

    async with app:
        storage = await app._runtime.storage()
        async with app.worker(poll=0.02, concurrency=1) as worker:
            tried = Fault(storage, "now" if store == "valkey" else "begin_transaction", monkeypatch)
            handles = [await work.enqueue(n) for n in range(5)]
            async with asyncio.timeout(10):
                while not began:
                    await asyncio.sleep(0.001)
            async with asyncio.timeout(20):
                while tried.left:
                    assert began == [0]
                    assert not worker._control.condition().ready
                    assert worker._control.condition().live
                    await asyncio.sleep(0.001)
            assert [await handle.result(timeout=20) for handle in handles] == [*range(5)]
            assert worker._control.condition().ready


# ---- real trouble ----------------------------------------------------------------------------------
async def test_postgres_without_connections_for_a_while():
    """Fifty jobs, each with a transaction, while others have taken every connection of the server."""
    settings = {"max_connections": "20", "superuser_reserved_connections": "0"}
    try:
        own = servers.start("postgres", settings=settings)
    except servers.NotAvailable as missing:
        decline("postgres", missing)
    with own:
        if own.process is None:
            pytest.skip("the server that the environment names is not ours to fill")
        app = Perdure(own.fresh(), lease=60)
        failed = asyncio.Event()

        @app.task(max_attempts=3, backoff=Backoff.fixed(0.01))
        async def work(ctx: Context, n: int) -> int:
            try:
                tx = await ctx.transaction()
                await tx.execute("INSERT INTO effects VALUES (%s)", [n])
            except StoreError:
                failed.set()
                raise
            return n

        taken = []
        async with app, await psycopg.AsyncConnection.connect(own.url, autocommit=True) as mine:
            await mine.execute("CREATE TABLE effects (n integer)")
            async with app.worker(poll=0.1, concurrency=50):
                await _take_all(own.url, taken)
                handles = [await work.enqueue(n) for n in range(50)]
                await asyncio.wait_for(failed.wait(), 30)
                await _take_all(own.url, taken)
                await asyncio.sleep(2)
                assert await app.jobs.count(state=State.DEAD) == 0
                for connection in taken:
                    await connection.close()
                assert sorted([await handle.result(timeout=60) for handle in handles]) == [*range(50)]
            jobs = [await app.jobs.get(handle.id) for handle in handles]
            assert {(job.state, job.failures, job.losses) for job in jobs} == {(State.SUCCEEDED, 0, 0)}
            rows = await (await mine.execute("SELECT n FROM effects ORDER BY n")).fetchall()
            assert [n for (n,) in rows] == [*range(50)], "each effect once"


async def _take_all(url: str, taken: list) -> None:
    while True:
        try:
            taken.append(await psycopg.AsyncConnection.connect(url, autocommit=True))
        except psycopg.OperationalError:
            return


@pytest.mark.parametrize("kind", [kind for kind in OF_EACH_KIND if kind != "valkey"])
@pytest.mark.parametrize("moment", ["begin", "statement", "connection", "enqueue", "commit"])
async def test_a_connection_that_breaks_in_a_transaction(kind, moment, tmp_path):
    direct = address(kind, tmp_path)
    with Proxy(direct) as proxy:
        app = Perdure(proxy.url, lease=60)

        @app.task
        async def other() -> None: ...

        @app.task(**ONCE)
        async def work(ctx: Context) -> None:
            bad = ctx.job.attempt == 1
            if bad and moment == "begin":
                await asyncio.to_thread(proxy.refuse, True)
                asyncio.get_running_loop().call_later(0.5, proxy.refuse, False)
            tx = await ctx.transaction()
            if bad:
                await asyncio.to_thread(proxy.cut)
            if moment == "statement" and kind == "postgres":
                await tx.execute("SELECT 1")
            elif moment in ("statement", "connection"):
                await _use_raw(tx.connection, kind)
            elif moment == "enqueue":
                await other.using(connection=tx).enqueue()

        async with app, app.worker(poll=0.1):
            # MongoDB keeps a transaction when a connection breaks, so its driver may go on with it over another one
            await free_of_charge(app, await work.enqueue(), (1, 2) if kind == "mongo" else (2,))


async def _use_raw(connection, kind: str) -> None:
    if kind == "postgres":
        await connection.execute("SELECT 1")
    else:
        await connection.client["test"]["things"].find_one({}, session=connection)


async def test_sqlite_that_others_keep_locked(tmp_path, monkeypatch):
    app = Perdure(f"sqlite:///{tmp_path}/jobs.db", lease=60)
    locked = []

    @app.task(**ONCE)
    async def work(ctx: Context) -> None:
        if ctx.job.attempt == 1:
            other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            locked.append(other)
            asyncio.get_running_loop().call_later(1.0, other.close)
        await ctx.transaction()

    async with app:
        store = await app._runtime.storage()
        database = store._shared.database
        monkeypatch.setattr(database, "retry_while_busy", sqlite_busy.retry_of(database.driver, 0.3))
        async with app.worker(poll=0.1):
            await free_of_charge(app, await work.enqueue())
    assert locked


@pytest.mark.parametrize("kind", OF_EACH_KIND)
async def test_the_error_of_a_server_that_is_gone_names_the_store(kind, tmp_path, monkeypatch):
    for module in (mongo_server, redis_client):
        monkeypatch.setattr(module, "RETRY_FOR", 0.3)
    monkeypatch.setattr(postgres_server, "PATIENCE", 0.3)
    with Proxy(address(kind, tmp_path)) as proxy:
        async with Perdure(proxy.url) as app:
            store = await app._runtime.storage()
            proxy.refuse(True)
            with pytest.raises(StoreUnavailable) as raised:
                async with asyncio.timeout(60):
                    await store.count(Filter())
            assert raised.value.place == store.place
            assert store.place
