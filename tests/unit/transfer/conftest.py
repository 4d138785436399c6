"""Stores that hold one of everything, and the whole of what a store holds."""

from contextlib import asynccontextmanager

import msgspec
import pytest

from perdure.storage.contract import KvWrite, QueueSettings
from perdure.storage.urls import opener
from perdure.testing import ManualClock
from perdure.testing.conformance.reading import transfer
from perdure.testing.conformance.tools import claim, job
from tests.support.addresses import address

LIMITS = '[["api",1,2,60000000]]'  # one at a time, two a minute


class House:
    """Stores by address, all under one clock."""

    def __init__(self, folder):
        self.folder = folder
        self.clock = ManualClock()

    def url(self, name):
        """An empty store."""
        if name != "sqlite":
            return address(name, self.folder)
        return f"sqlite:///{self.folder}/{len(list(self.folder.iterdir()))}.db"

    @asynccontextmanager
    async def open(self, url):
        store = opener(url, clock=self.clock, durability="relaxed")()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def fill(self, store):
        """One of everything; whoever ran has been gone for long."""
        await transfer.store_every_kind(store, self.clock)
        await store.configure(QueueSettings("fair", fair=True, weights='{"acme": 3.0}'))
        await store.enqueue([job(queue="fair", tenant=tenant) for tenant in ("acme", "acme", "other")])
        await store.enqueue([job(queue="few", limits=LIMITS) for _ in range(3)])
        await claim(store, queues=("few",), limited=True)
        (held,) = await claim(store, queues=("fair",))
        texts = (("schedule", "nightly", None), ("step", "ä\x00", held.id), ("step", "b", held.id))
        await store.kv_write([KvWrite(kind, name, "{}", due_at=7, job=owner) for kind, name, owner in texts])
        await store.kv_write([KvWrite("schedule", "nightly", '{"cron": "0 3 * * *"}', due_at=9)])
        await store.pause("a", True)
        self.clock.advance(3600)

    @staticmethod
    async def contents(store):
        """All that there is, in a form that can be compared. The source is paused, so that is looked at apart."""
        settings = [msgspec.structs.replace(row.settings, paused=False) for row in await store.queues()]
        kv = await store.export_kv(None, 100)
        return await transfer.export_all(store), await transfer.export_keys(store), settings, kv

    @staticmethod
    async def paused(store):
        return {row.settings.name for row in await store.queues() if row.settings.paused}


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def silent(what, done, size):
    """Tells nobody."""
