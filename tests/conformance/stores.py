"""The stores under test: a function for each that gives a fresh, open store and its clock."""

from holdfast.storage.memory import MemoryStorage
from holdfast.testing import ManualClock


async def memory(directory):
    clock = ManualClock()
    store = MemoryStorage(clock)
    await store.open()
    return store, clock


STORES = {"memory": memory}
