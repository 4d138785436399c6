"""What an outbox cannot do is refused, with the remedy."""

import sqlite3

import psycopg
import pytest

from perdure import InvalidCall, Perdure, StoreError
from perdure.storage.urls import outbox_ledger, outbox_opener

from .scene import Scene, add_task


@pytest.mark.parametrize(
    "url", ["redis://localhost", "mongodb://localhost/db", "memory://", "shop.db", "", 5, b"sqlite:///x"]
)
def test_an_outbox_is_in_a_database_with_callers_transactions(url):
    with pytest.raises(InvalidCall, match="outbox= is the URL of the database that your transactions are in"):
        Perdure("memory://", outbox=url)


@pytest.mark.parametrize("url", ["redis://localhost", "memory://", "sqlite:///:memory:"])
def test_addresses_that_cannot_hold_one_are_refused_everywhere(url):
    for door in (outbox_opener, outbox_ledger):
        with pytest.raises(StoreError, match="cannot hold an outbox"):
            door(url)


async def test_a_url_that_is_wrong_is_told_at_the_first_enqueue(tmp_path):
    app = Perdure("memory://", outbox="sqlite://shop.db")
    task = add_task(app)
    database = sqlite3.connect(tmp_path / "shop.db")
    with pytest.raises(StoreError, match="three slashes"):
        await task.using(connection=database).enqueue()
    database.close()
    assert await (await task.enqueue()).refresh()  # the store works without it


async def test_a_connection_to_another_database_is_refused(near, tmp_path):
    other = sqlite3.connect(tmp_path / "other.db")
    async with near.app:
        await near.open_outbox()
        with pytest.raises((StoreError, InvalidCall), match="the app's outbox is"):
            await near.task.using(connection=other).enqueue()
    other.close()


async def test_a_connection_that_commits_by_itself_is_refused(near):
    database = near.connect(autocommit=True) if near.kind == "postgres" else near.connect(isolation_level=None)
    async with near.app:
        await near.open_outbox()
        with pytest.raises(InvalidCall, match="autocommit"):
            await near.task.using(connection=database).enqueue()
    database.close()
    assert near.rows() == []


async def test_a_file_that_the_caller_keeps_locked_has_to_get_its_outbox_before(tmp_path, monkeypatch):
    monkeypatch.setattr("perdure.storage.sqlite.outbox.MADE_WITHIN", 0.05)
    scene = Scene(tmp_path, "sqlite", "memory")
    database = scene.connect()
    database.execute("create table orders (id integer)")
    database.execute("insert into orders values (1)")
    with pytest.raises(StoreError, match="end that transaction; run `perdure migrate --outbox"):
        await scene.task.using(connection=database).enqueue()
    database.commit()
    await scene.task.using(connection=database).enqueue()  # now it can be made
    database.commit()
    assert len(scene.rows()) == 1
    database.close()
    await scene.app.close()


async def test_without_migrate_the_table_must_be_there(near):
    app = near.another(migrate=False)
    task = add_task(app)
    database = near.connect()
    with pytest.raises(StoreError, match="run `perdure migrate --outbox"):
        await task.using(connection=database).enqueue()
    database.close()
    await app.close()


async def test_an_outbox_and_a_store_share_a_database(tmp_path):
    """Whichever comes first, neither takes the other's tables for a stranger's."""
    for number, first in enumerate(["store", "outbox"]):
        url = f"sqlite:///{tmp_path}/{number}.db"
        app, store = Perdure("memory://", outbox=url), Perdure(url)
        async with app, store:
            if first == "store":
                await store.jobs.count()
            await app._runtime.loops.outboxes.get()
            assert await store.jobs.count() == 0
            assert (await (await store._runtime.storage()).durability()).grade == "B"
            task = add_task(app)
            with sqlite3.connect(tmp_path / f"{number}.db") as database:
                await task.using(connection=database).enqueue()
            await app._runtime.relay().once()
            assert await app.jobs.count() == 1
            database.close()


@pytest.mark.parametrize("first", ["store", "outbox"])
async def test_an_outbox_and_a_store_share_a_schema(tmp_path, first):
    scene = Scene(tmp_path, "postgres", "memory")
    store = Perdure(scene.outbox)
    async with scene.app as app, store:
        if first == "store":
            await store.jobs.count()
        await scene.open_outbox()
        assert await store.jobs.count() == 0
        with scene.transaction() as database:
            await scene.task.using(connection=database).enqueue()
        await app._runtime.relay().once()
        assert (await app.jobs.count(), await store.jobs.count()) == (1, 0)


async def test_the_journal_of_a_callers_file_stays_as_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("pragma journal_mode=delete")
        database.execute("create table orders (id integer)")
    scene = Scene(tmp_path, "sqlite", "memory")
    async with scene.app as app:
        await scene.open_outbox()
        await scene.task.using(connection=database).enqueue()
        database.commit()
        await app._runtime.relay().once()
        assert await app.jobs.count() == 1
    assert database.execute("pragma journal_mode").fetchone() == ("delete",)
    database.close()


async def test_a_role_that_may_not_insert_is_told_what_it_needs(tmp_path):
    scene = Scene(tmp_path, "postgres", "memory")
    schema = scene.table.partition(".")[0]
    role = f"{schema}_role"
    async with scene.app:
        await scene.open_outbox()
        with scene.transaction() as database:
            database.execute(f"create role {role}")
            database.execute(f"grant usage on schema {schema} to {role}")
        with scene.transaction(commit=False) as database:
            database.execute(f"set local role {role}")
            with pytest.raises(StoreError, match="INSERT on its table perdure_outbox"):
                await scene.task.using(connection=database).enqueue()
        with scene.transaction() as database:
            database.execute(f"grant insert on {scene.table} to {role}")
        with scene.transaction() as database:
            database.execute(f"set local role {role}")
            await scene.task.using(connection=database).enqueue()
        assert len(scene.rows()) == 1
        with scene.transaction() as database:
            database.execute(f"drop owned by {role}")
            database.execute(f"drop role {role}")


async def test_a_database_of_any_encoding_can_hold_an_outbox(tmp_path):
    from tests.support.real_servers import server

    url = server("postgres").url
    name = f"perdure_test_latin_{tmp_path.name[-8:].lower().replace('-', '_')}"
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(f"create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
    base, _, options = url.partition("?")
    latin = f"{base.rpartition('/')[0]}/{name}" + (f"?{options}" if options else "")
    app = Perdure("memory://", outbox=latin)
    task = add_task(app)
    try:
        async with app:
            with psycopg.connect(latin) as database:
                job = await task.using(connection=database, queue="größe €").enqueue("日本")
            await app._runtime.relay().once()
            assert (await job.refresh()).queue == "größe €"
            assert "日本" in (await job.refresh()).payload
    finally:
        with psycopg.connect(url, autocommit=True) as database:
            database.execute(f"drop database {name} with (force)")
