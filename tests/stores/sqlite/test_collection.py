"""A database in memory is let go by the garbage collector, whatever runs at that moment."""

from __future__ import annotations

import gc
import threading

import pytest

from perdure.storage.sqlite.connection import process_shared
from perdure.storage.urls import opener


def collected_in_a_thread() -> None:
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()


@pytest.mark.parametrize("collect", [gc.collect, collected_in_a_thread])
async def test_a_collection_inside_opening_waits_for_nobody(monkeypatch, collect):
    first = opener("sqlite:///:memory:")
    store = first()
    await store.open()
    await store.close()
    cycle = [first]
    cycle.append(cycle)
    begin = process_shared.Shared.__init__

    def begin_and_collect(self, *args):
        collect()
        begin(self, *args)

    monkeypatch.setattr(process_shared.Shared, "__init__", begin_and_collect)
    gc.disable()
    try:
        del first, store, cycle
        second = opener("sqlite:///:memory:")()
    finally:
        gc.enable()
    await second.open()
    assert await second.queues() == []
    assert not process_shared._released
    await second.close()
