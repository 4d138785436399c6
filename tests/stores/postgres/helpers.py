"""Jobs and small programs for the tests of the PostgreSQL store."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path

from perdure.core.ids import new_id
from perdure.core.record import NewJob
from perdure.storage.urls import opener

RECENT = {"task": "t", "payload": "{}", "backoff": '["fixed",1000000,1.0,1000000,0]', "retention": "{}"}


def job(**fields) -> NewJob:
    return NewJob(**{"id": new_id(), "dead_retention": "{}", **RECENT, **fields})


@asynccontextmanager
async def opened(url: str, **options):
    store = opener(url, durability="relaxed", **options)()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
