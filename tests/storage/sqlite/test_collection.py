"""A database in memory is let go by the garbage collector, whatever runs at that moment."""

from __future__ import annotations

import gc
import threading

from holdfast.storage.sqlite import shared
from holdfast.storage.urls import opener


async def test_a_collection_inside_opening_does_not_wait_for_itself(monkeypatch):
    first = opener("sqlite:///:memory:")
    store = first()
    await store.open()
    await store.close()
    cycle = [first]
    cycle.append(cycle)
    begin = shared.Shared.__init__

    def begin_and_collect(self, *args):
        gc.collect()
        begin(self, *args)

    monkeypatch.setattr(shared.Shared, "__init__", begin_and_collect)
    del first, store, cycle
    second = opener("sqlite:///:memory:")()
    await second.open()
    assert await second.queues() == []
    await second.close()


async def test_a_collection_in_a_thread_that_an_opening_waits_for(monkeypatch):
    first = opener("sqlite:///:memory:")
    store = first()
    await store.open()
    await store.close()
    cycle = [first]
    cycle.append(cycle)
    begin = shared.Shared.__init__

    def begin_and_wait_for_a_collection(self, *args):
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
        begin(self, *args)

    monkeypatch.setattr(shared.Shared, "__init__", begin_and_wait_for_a_collection)
    gc.disable()
    try:
        del first, store, cycle
        second = opener("sqlite:///:memory:")()
    finally:
        gc.enable()
    await second.open()
    assert not shared._leaving
    await second.close()
