"""Which journal a file gets, and that it keeps it."""

import sqlite3

import pytest

from perdure.errors import StoreError
from perdure.storage.sqlite.connection import driver as drivers
from perdure.storage.sqlite.connection import journal_mode
from perdure.storage.sqlite.connection.database_file import DatabaseFile

from .helpers import job, store_at


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        ((3, 37, 2), "persist"),
        ((3, 40, 1), "persist"),
        ((3, 44, 5), "persist"),
        ((3, 44, 6), "wal"),
        ((3, 45, 0), "persist"),
        ((3, 50, 6), "persist"),
        ((3, 50, 7), "wal"),
        ((3, 51, 0), "persist"),
        ((3, 51, 2), "persist"),
        ((3, 51, 3), "wal"),
        ((3, 52, 0), "wal"),
        ((4, 0, 0), "wal"),
    ],
)
def test_the_version_decides(version, mode):
    assert journal_mode.mode_for("auto", version) == mode
    assert journal_mode.mode_for("wal", version) == "wal"
    assert journal_mode.mode_for("persist", version) == "persist"
    assert journal_mode.mode_for("truncate", version) == "truncate"


def test_a_sqlite_without_strict_tables_is_refused():
    class Old:
        version = (3, 36, 0)

    with pytest.raises(StoreError, match=r"3\.36\.0 is too old, 3\.37\.0 is needed"):
        journal_mode.JournalKeeper(DatabaseFile(None), Old(), "auto")


affected = pytest.mark.skipif(journal_mode.wal_is_safe(sqlite3.sqlite_version_info), reason="this SQLite has the fix")


@affected
async def test_wal_on_an_affected_version_is_class_c(tmp_path, caplog):
    path = tmp_path / "jobs.db"
    async with store_at(path, query="?journal=wal") as store:
        durability = await store.durability()
        assert durability.grade == "C"
        assert "3.51.3" in durability.remedy
        assert "durability C" in caplog.text
    with pytest.raises(StoreError, match='durability="full" refused'):
        async with store_at(path, query="?journal=wal", durability="full"):
            pass
    async with store_at(path, query="?journal=wal", durability="relaxed"):
        pass


@affected
async def test_a_file_left_in_wal_mode_is_brought_back(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as raw:
        raw.execute("pragma journal_mode=wal")
    raw.close()
    async with store_at(path) as store:
        assert (await store.durability()).grade == "B"


@affected
async def test_another_program_that_switches_the_mode_is_noticed(tmp_path, caplog):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job()])
        other = sqlite3.connect(path)
        assert other.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        other.execute("select count(*) from perdure_jobs").fetchall()
        for _ in range(
            2
        ):  # SQLite tells the mode of its last look at the file: that of the first check may be the old one
            store._shared.database._mode_checked = float("-inf")  # a minute has passed
            await store.enqueue([job()])
        assert "switched to WAL by another program" in caplog.text
        assert (await store.durability()).grade == "C"
        other.close()
        assert (await store.durability()).grade == "B"


async def test_durability_classes(tmp_path):
    async with store_at(tmp_path / "jobs.db", durability="full") as store:
        assert (await store.durability()).grade == "B"
    async with store_at(":memory:", durability="full") as store:
        assert (await store.durability()).grade == "D"


async def test_apsw_brings_its_own_sqlite(tmp_path):
    pytest.importorskip("apsw")
    async with store_at(tmp_path / "jobs.db", scheme="sqlite+apsw") as store:
        durability = await store.durability()
        assert durability.grade == "B"
        safe = journal_mode.wal_is_safe(drivers.driver("apsw").version)
        assert ("journal wal" in durability.detail) is safe


async def test_our_connections_sync_fully_and_map_nothing(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        asked = ("synchronous", "mmap_size")
        found = await store._shared.database.alone(lambda c: [c.value(f"pragma {name}") for name in asked])
        assert found == [2, 0]


@affected
async def test_every_writing_connection_has_the_durable_journal(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        assert await store._shared.database.alone(lambda c: c.value("pragma journal_mode")) == "persist"
        transaction = await store.begin_transaction(1_000_000)
        assert await transaction.execute("pragma journal_mode") == [("persist",)]
        await transaction.rollback()
