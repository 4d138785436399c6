"""`async with app:`, `with app.sync:` and `app.migrate()` reach the store before the first job does, on every store."""

import asyncio
import sqlite3

import pytest

from perdure import Perdure, StoreError
from tests.support import addresses


@pytest.fixture(params=addresses.NAMES)
def name(request):
    return request.param


@pytest.fixture
def url(name, tmp_path):
    return addresses.address(name, tmp_path)


async def test_async_with_opens_the_store(url):
    app = Perdure(url)
    async with app as same:
        assert same is app
        assert app._runtime.loops.here() is not None
    assert app._runtime.loops.here() is None


def test_with_sync_opens_the_store(url):
    app = Perdure(url)
    with app.sync as blocking:
        assert len(app._runtime.loops._places) == 1
        assert blocking.enqueue([]) == []
    assert app._runtime.loops._places == {}


async def test_async_with_tells_of_a_store_that_cannot_be_opened(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path}/no/such/folder/jobs.db")
    with pytest.raises(StoreError, match="does not exist"):
        async with app:
            raise AssertionError("the block must not begin")
    with pytest.raises(StoreError, match="does not exist"):
        await asyncio.to_thread(app.sync.__enter__)


async def test_migrate_makes_the_tables_for_an_app_that_does_not(name, url):
    app = Perdure(url, migrate=False)

    @app.task
    async def task() -> None: ...

    if name in ("sqlite", "postgres", "mongo"):
        with pytest.raises(StoreError, match="perdure migrate"):
            await task.enqueue()
    await app.migrate()
    await app.migrate()
    assert not (await task.enqueue()).duplicate
    await app.close()


def test_migrate_in_its_blocking_form(url):
    app = Perdure(url, migrate=False)
    app.sync.migrate()
    with app.sync:
        assert app.jobs.sync.count() == 0


async def test_migrate_makes_the_outbox_too(tmp_path):
    shop = tmp_path / "shop.db"
    app = Perdure(f"sqlite:///{tmp_path}/jobs.db", outbox=f"sqlite:///{shop}", migrate=False)
    await app.migrate()
    with sqlite3.connect(shop) as connection:
        tables = [table for (table,) in connection.execute("select name from sqlite_master where type = 'table'")]
    connection.close()
    assert "perdure_outbox" in tables
    await app.close()


async def test_migrate_tells_of_a_store_that_cannot_be_reached():
    app = Perdure("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(StoreError):
        await app.migrate()
