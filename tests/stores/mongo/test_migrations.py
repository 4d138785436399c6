"""A database of an older version is migrated in place, by one process or by several at once."""

import asyncio
import json

import pytest
from pymongo import MongoClient

from perdure.errors import StoreError
from perdure.storage.contract import Filter
from perdure.storage.migrations import Migration
from perdure.storage.mongo import lifetime, schema
from perdure.storage.urls import opener
from perdure.testing.conformance.tools import ids

from .helpers import claim, database_of, fresh, job, store_at

NEXT = [
    {"collection": "later", "about": "", "indexes": []},
    {"collection": "queues", "about": "", "indexes": [{"name": "perdure_later", "key": {"later": 1}}]},
]


@pytest.fixture
def url(monkeypatch):
    """A database of the first version with a ready job, in the eyes of a Perdure that has one more."""
    url = fresh()
    known = schema.load_migrations()

    async def make() -> None:
        async with store_at(url) as made:
            await made.enqueue([job()])

    asyncio.run(make())
    newer = [*known, Migration(len(known) + 1, "next", json.dumps(NEXT))]
    for module in (lifetime, schema):
        monkeypatch.setattr(module, "load_migrations", lambda: newer)
    return url


def version_of(url):
    with MongoClient(url) as client:
        return database_of(client, url)["perdure_meta"].find_one({"_id": "schema"})["version"]


def indexes_of(url):
    with MongoClient(url) as client:
        return set(database_of(client, url)["perdure_queues"].index_information())


async def test_an_older_database_is_migrated_and_keeps_its_jobs(url):
    before = version_of(url)
    async with store_at(url) as newer:
        assert len(ids(await newer.claim(claim(9)))) == 1
    assert version_of(url) == before + 1
    assert "perdure_later" in indexes_of(url)


async def test_without_permission_to_migrate_an_older_database_is_refused(url):
    before = version_of(url)
    with pytest.raises(StoreError, match="perdure migrate"):
        await opener(url, migrate=False)().open()
    assert version_of(url) == before


async def test_several_migrators_at_once(url):
    stores = [opener(url)() for _ in range(4)]
    await asyncio.gather(*(each.open() for each in stores))
    assert [await each.count(Filter()) for each in stores] == [1] * 4
    for each in stores:
        await each.close()


async def test_a_migration_that_was_interrupted_is_run_again(url):
    async with store_at(url):
        pass
    with MongoClient(url) as client:
        database_of(client, url)["perdure_queues"].drop_index("perdure_later")
    async with store_at(url):
        pass
    assert "perdure_later" in indexes_of(url)
