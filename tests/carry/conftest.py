"""Stores that hold one of everything, and the whole of what a store holds."""

from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.storage.urls import opener
from holdfast.testing import ManualClock
from holdfast.testing.conformance import carry

from ..addresses import address


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
        await carry.filled(store, self.clock)
        await store.pause("a", True)
        self.clock.advance(3600)

    @staticmethod
    async def contents(store):
        """All that there is, in a form that can be compared. The source is paused, so that is looked at apart."""
        settings = [msgspec.structs.replace(row.settings, paused=False) for row in await store.queues()]
        return await carry.carried(store), await carry.kept_keys(store), settings

    @staticmethod
    async def paused(store):
        return {row.settings.name for row in await store.queues() if row.settings.paused}


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def silent(what, done, size):
    """Tells nobody."""
