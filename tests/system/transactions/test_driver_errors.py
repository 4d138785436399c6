"""Errors of the driver that a handler gets from `tx.connection`: the store's trouble is not charged, a mistake of the
handler is."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import psycopg
import pytest

import servers
from perdure import Backoff, Context, Perdure, State
from tests.support.addresses import NAMES, OF_EACH_KIND, address
from tests.support.real_servers import decline

ONCE = {"max_attempts": 1, "backoff": Backoff.fixed(0.01)}  # a single failure would make a dead letter
FILES = [name for name in ("sqlite", "sqlite+apsw") if name in NAMES]
WITH_TRANSACTIONS = [*FILES, *(kind for kind in OF_EACH_KIND if kind != "valkey")]


async def ended(app: Perdure, handle):
    async with asyncio.timeout(60):
        while (job := await app.jobs.get(handle.id)).state not in (State.SUCCEEDED, State.DEAD):
            await asyncio.sleep(0.02)
    return job


async def run(app: Perdure, use) -> object:
    """The job after its handler has used the connection of its transaction in this way, at its first attempt."""

    @app.task(**ONCE)
    async def work(ctx: Context) -> None:
        tx = await ctx.transaction()
        if ctx.job.attempt == 1:
            await use(tx)

    async with app, app.worker(poll=0.05):
        return await ended(app, await work.enqueue())


def not_charged(job) -> None:
    assert (job.state, job.failures, job.losses, job.errors) == (State.SUCCEEDED, 0, 0, ())
    assert job.attempt == 2


# ---- trouble of the store --------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["tx.connection", "tx.execute", "in a group"])
@pytest.mark.parametrize("name", FILES)
async def test_a_full_disk_under_sqlite(name, way, tmp_path):
    async def use(tx) -> None:
        tx.connection.execute("PRAGMA max_page_count=1")  # as full as the file is now
        statements = ["CREATE TABLE mine (data)", "INSERT INTO mine VALUES (zeroblob(3000000))"]
        if way == "tx.execute":
            for statement in statements:
                await tx.execute(statement)
        try:
            for statement in statements:
                tx.connection.execute(statement)
        except Exception as error:
            if way == "in a group":
                raise ExceptionGroup("of a task group", [error]) from None
            raise

    not_charged(await run(Perdure(address(name, tmp_path)), use))


async def test_a_lock_under_sqlite(tmp_path):
    """With a rollback journal a transaction needs the file for itself when it writes it. A reader is in its way."""
    path = tmp_path / "jobs.db"

    async def use(tx) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
            tx.connection.execute("CREATE TABLE mine (data)")
            with pytest.raises(sqlite3.OperationalError, match="locked") as raised:
                tx.connection.execute("COMMIT")
        raise raised.value

    not_charged(await run(Perdure(f"sqlite:///{path}"), use))


@pytest.mark.skipif("postgres" not in OF_EACH_KIND, reason="no PostgreSQL here")
async def test_an_administrator_ends_the_connection_on_postgres(tmp_path):
    url = address("postgres", tmp_path)

    async def use(tx) -> None:
        async with await psycopg.AsyncConnection.connect(url.partition("?")[0], autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", [tx.connection.info.backend_pid])
        await tx.connection.execute("SELECT 1")

    not_charged(await run(Perdure(url), use))


@pytest.mark.parametrize("state", ["53100", "53200", "53300", "25006", "57P03"])
@pytest.mark.parametrize("way", ["tx.connection", "tx.execute"])
@pytest.mark.skipif("postgres" not in OF_EACH_KIND, reason="no PostgreSQL here")
async def test_the_server_lacks_something_on_postgres(state, way, tmp_path):
    """The server itself raises the error, with the code that it has for a full disk, too little memory and so on."""

    async def use(tx) -> None:
        execute = tx.connection.execute if way == "tx.connection" else tx.execute
        await execute(f"DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{state}'; END $$")

    not_charged(await run(Perdure(address("postgres", tmp_path)), use))


@pytest.mark.skipif("mongo" not in OF_EACH_KIND, reason="no MongoDB here")
async def test_the_server_is_no_longer_the_primary_on_mongo(tmp_path):
    from pymongo.errors import AutoReconnect

    async def use(tx) -> None:
        client, things = tx.connection.client, tx.connection.client["test"]["things"]
        await things.find_one({}, session=tx.connection)
        await client.admin.command("replSetStepDown", 1, force=True)
        with pytest.raises(AutoReconnect) as raised:
            await things.find_one({}, session=tx.connection)
        raise raised.value

    try:
        own = servers.start("mongo")
    except servers.NotAvailable as missing:
        decline("mongo", missing)
    with own:
        if own.process is None:
            pytest.skip("the server that the environment names is not ours to stop")
        not_charged(await run(Perdure(own.fresh()), use))


# ---- mistakes of the handler -----------------------------------------------------------------------
MISTAKES = {
    "syntax": ("SELEC 1",),
    "no such table": ("SELECT * FROM not_there",),
    "constraint": ("CREATE TABLE once (n integer PRIMARY KEY)", "INSERT INTO once VALUES (1), (1)"),
}


@pytest.mark.parametrize("way", ["tx.connection", "tx.execute"])
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", [name for name in WITH_TRANSACTIONS if name != "mongo"])
async def test_a_mistake_in_a_statement_is_charged(name, mistake, way, tmp_path):
    async def use(tx) -> None:
        for statement in MISTAKES[mistake]:
            if way == "tx.execute":
                await tx.execute(statement)
            elif name == "postgres":
                await tx.connection.execute(statement)
            else:
                tx.connection.execute(statement)

    job = await run(Perdure(address(name, tmp_path)), use)
    assert (job.state, job.failures, job.attempt) == (State.DEAD, 1, 1)


@pytest.mark.skipif("mongo" not in OF_EACH_KIND, reason="no MongoDB here")
@pytest.mark.parametrize("mistake", ["unknown operator", "duplicate key"])
async def test_a_mistake_on_mongo_is_charged(mistake, tmp_path):
    async def use(tx) -> None:
        things = tx.connection.client["perdure_test_mistakes"][f"things_{tmp_path.name}"]
        if mistake == "unknown operator":
            await things.find_one({"$nonsense": 1}, session=tx.connection)
        for _ in range(2):
            await things.insert_one({"_id": 1}, session=tx.connection)

    job = await run(Perdure(address("mongo", tmp_path)), use)
    assert (job.state, job.failures, job.attempt) == (State.DEAD, 1, 1)
