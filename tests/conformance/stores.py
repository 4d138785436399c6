"""The stores under test: a function for each that gives a fresh, open store and its clock."""

from importlib.util import find_spec

from holdfast.storage.urls import opener
from holdfast.testing import ManualClock


def _maker(url):
    async def make(directory):
        clock = ManualClock()
        open_one = opener(url.format(directory=directory), clock=clock, durability="relaxed")
        store = open_one()
        store.opener = open_one  # a database in memory lives as long as its opener
        await store.open()
        return store, clock

    return make


STORES = {
    "memory": _maker("memory://"),
    "sqlite": _maker("sqlite:///{directory}/jobs.db"),
    "sqlite-in-memory": _maker("sqlite:///:memory:"),
}
if find_spec("apsw") is not None:
    STORES["sqlite+apsw"] = _maker("sqlite+apsw:///{directory}/jobs.db")
