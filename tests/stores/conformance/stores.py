"""The stores under test: a function for each that gives a fresh, open store and its clock."""

from importlib.util import find_spec
from itertools import count

import pytest

from perdure.storage.rules import fast_path
from perdure.storage.sqlite.connection.database_file import DatabaseFile
from perdure.storage.sqlite.store import SqliteStorage
from perdure.storage.urls import opener
from perdure.testing import ManualClock
from tests.support.real_servers import kinds_with_a_store

from . import reuse

_numbers = count()


def _maker(url):
    async def make(directory):
        clock = ManualClock()
        store = opener(url.format(directory=directory), clock=clock, durability="relaxed")()
        await store.open()
        return store, clock

    return make


def _without_fast_paths(make):
    """A store that uses only its general paths, from its opening to its end."""

    async def made(directory):
        patch = pytest.MonkeyPatch()
        patch.setattr(fast_path, "enabled", lambda: False)
        store, clock = await make(directory)
        close = store.close

        async def close_and_undo():
            patch.undo()
            await close()

        store.close = close_and_undo
        return store, clock

    return made


async def _in_memory(directory):
    """A database of its own that ends when it is closed; behind a URL it would live as long as its app."""
    clock = ManualClock()
    store = SqliteStorage(
        DatabaseFile(None), clock=clock, demand="relaxed", key=f":memory:conformance {next(_numbers)}"
    )
    await store.open()
    return store, clock


def _on_a_server(kind):
    async def make(directory):
        url = reuse.address(kind)
        store, clock = await _maker(url)(directory)
        close = store.close

        async def close_and_give_back():
            await close()
            reuse.give_back(kind, url)

        store.close = close_and_give_back
        return store, clock

    return make


STORES = {
    "memory": _maker("memory://"),
    "sqlite": _maker("sqlite:///{directory}/jobs.db"),
    "sqlite-general": _without_fast_paths(_maker("sqlite:///{directory}/jobs.db")),
    "sqlite-in-memory": _in_memory,
}
if find_spec("apsw") is not None:
    STORES["sqlite+apsw"] = _maker("sqlite+apsw:///{directory}/jobs.db")
LOCAL = frozenset(STORES)
STORES |= {kind: _on_a_server(kind) for kind in kinds_with_a_store()}
if "valkey" in STORES:
    STORES["valkey-general"] = _without_fast_paths(_on_a_server("valkey"))
