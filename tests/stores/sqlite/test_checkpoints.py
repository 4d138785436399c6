"""The write-ahead log is brought into the database while nobody waits, so that it is written over and does not grow."""

import asyncio

from perdure.storage.contract import Filter
from perdure.storage.sqlite.connection.journal_mode import COMMITS, Checkpoints

from .helpers import job, store_at


def noted_checkpoints(monkeypatch) -> asyncio.Queue:
    """What tells of each checkpoint."""
    told: asyncio.Queue = asyncio.Queue()
    loop = asyncio.get_running_loop()
    reset = Checkpoints.reset

    def note(self):
        reset(self)
        loop.call_soon_threadsafe(told.put_nowait, None)

    monkeypatch.setattr(Checkpoints, "reset", note)
    return told


async def test_a_pause_brings_the_log_into_the_database_and_it_grows_no_more(tmp_path, monkeypatch):
    told = noted_checkpoints(monkeypatch)
    path = tmp_path / "jobs.db"
    log = tmp_path / "jobs.db-wal"
    async with store_at(path, query="?journal=wal", durability="relaxed") as store:
        for _ in range(COMMITS):
            await store.enqueue([job()])
        await asyncio.wait_for(told.get(), 30)
        size = log.stat().st_size
        for _ in range(COMMITS // 2):
            await store.enqueue([job()])
        assert log.stat().st_size == size
        assert await store.count(Filter()) == COMMITS + COMMITS // 2


async def test_a_rollback_journal_and_a_file_that_is_gone_do_no_harm(tmp_path, monkeypatch):
    told = noted_checkpoints(monkeypatch)
    path = tmp_path / "jobs.db"
    async with store_at(path, query="?journal=persist") as store:
        for _ in range(COMMITS):
            await store.enqueue([job()])
        await asyncio.wait_for(told.get(), 30)
        for _ in range(COMMITS):
            await store.enqueue([job()])
        path.rename(tmp_path / "elsewhere.db")
        await asyncio.wait_for(told.get(), 30)
        (tmp_path / "elsewhere.db").rename(path)
        assert await store.count(Filter()) == 2 * COMMITS
