"""Files that cannot be a store say so, and say what to do."""

import asyncio
import os
import sqlite3
import subprocess
import sys

import pytest

from perdure.errors import StoreError
from perdure.storage.contract import Filter
from perdure.storage.sqlite.connection import database_file

from .helpers import job, store_at


async def refused(path, match, **options):
    with pytest.raises(StoreError, match=match):
        async with store_at(path, **options):
            pass


async def test_a_missing_directory(tmp_path):
    await refused(tmp_path / "no" / "jobs.db", "no does not exist; create it first")


async def test_a_directory(tmp_path):
    await refused(tmp_path, "it is a directory; name a file inside it")


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
async def test_a_file_that_is_no_database(tmp_path, scheme):
    if scheme == "sqlite+apsw":
        pytest.importorskip("apsw")
    path = tmp_path / "jobs.db"
    path.write_text("these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    await refused(path, "not a SQLite database; name another file", scheme=scheme)
    assert path.read_bytes() == before


async def test_a_damaged_database(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job(payload=f'"{"x" * 500}"') for _ in range(300)])
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="it is damaged; restore a backup"):
        async with store_at(path) as store:
            await store.enqueue([job()])


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
async def test_a_file_that_is_taken_away_takes_no_more_jobs(tmp_path, scheme):
    """SQLite would go on with a file that nobody finds any more."""
    if scheme == "sqlite+apsw":
        pytest.importorskip("apsw")
    path = tmp_path / "jobs.db"
    async with store_at(path, scheme=scheme) as store:
        await store.enqueue([job()])
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(
            StoreError, match=r"jobs.db has been removed while it was in use: put it back, or start anew"
        ):
            await store.enqueue([job()])
        with pytest.raises(StoreError, match="has been removed"):
            await store.count(Filter())
        (tmp_path / "elsewhere.db").rename(path)
        await store.enqueue([job()])
        assert await store.count(Filter()) == 2


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
@pytest.mark.parametrize("made", [True, False], ids=["by another app", "empty"])
async def test_a_file_that_is_replaced_is_the_new_one(tmp_path, scheme, made):
    if scheme == "sqlite+apsw":
        pytest.importorskip("apsw")
    path = tmp_path / "jobs.db"
    async with store_at(path, scheme=scheme) as store:
        await store.enqueue([job(), job(), job()])
        assert await store.count(Filter()) == 3
        for old in tmp_path.glob("jobs.db*"):
            if old.is_file():
                old.unlink()
        if made:
            await asyncio.to_thread(_another_app, f"{scheme}:///{path}")
        else:
            path.touch()
        assert await store.count(Filter()) == int(made)
        await store.enqueue([job()])
        assert await store.count(Filter()) == 1 + made


def _another_app(url):
    program = (
        "import sys; from perdure import Perdure\n"
        "app = Perdure(sys.argv[1], durability='relaxed')\n"
        "@app.task\ndef task() -> None: ...\n"
        "app.sync.enqueue([task.call()])\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=60)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_file_or_directory(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path):
        pass
    path.chmod(0o444)
    await refused(path, "the file is read-only for this user")
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    try:
        await refused(path, "SQLite keeps its journal there")
    finally:
        tmp_path.chmod(0o755)


async def test_a_file_that_no_one_may_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    path = tmp_path / "jobs.db"
    path.touch()
    await refused(path, "the file is read-only for this user; change its permissions")
    path.unlink()
    await refused(path, "SQLite keeps its journal there; change its permissions")


async def test_a_foreign_database_with_our_names(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as raw:
        raw.execute("create table perdure_jobs (id integer, mine text)")
    raw.close()
    await refused(path, r"not made by it \(perdure_jobs\): rename them, or use another file")


async def test_our_tables_beside_the_callers_own(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as raw:
        raw.execute("create table orders (id integer)")
        raw.execute("pragma user_version=7")
    raw.close()
    async with store_at(path) as store:
        await store.enqueue([job()])
    with sqlite3.connect(path) as raw:
        tables = {name for (name,) in raw.execute("select name from sqlite_master where type = 'table'")}
        assert raw.execute("pragma user_version").fetchone() == (7,)
    raw.close()
    assert {name for name in tables if not name.startswith("perdure_")} == {"orders"}


async def test_a_newer_schema(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path):
        pass
    with sqlite3.connect(path) as raw:
        raw.execute("update perdure_meta set value = '99' where name = 'schema'")
    raw.close()
    await refused(path, "has schema version 99, and this Perdure knows only up to 1: .* upgrade perdure")


async def test_without_migrate_the_tables_must_be_there(tmp_path):
    path = tmp_path / "jobs.db"
    await refused(path, "does not exist: run `perdure migrate`", migrate=False)
    assert not path.exists()
    sqlite3.connect(path).executescript("create table orders (id integer)").connection.close()
    await refused(path, "has no tables of Perdure: run `perdure migrate`", migrate=False)
    async with store_at(path):
        pass
    async with store_at(path, migrate=False) as store:
        await store.enqueue([job()])


async def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database_file, "file_system_of", lambda directory: "nfs4")
    await refused(tmp_path / "jobs.db", r"network file system \(nfs4\)")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/mounts")
def test_the_file_system_is_found(tmp_path):
    assert database_file.file_system_of(tmp_path)
    assert database_file.file_system_of(database_file.Path("/proc/self")) == "proc"


async def test_never_two_drivers_on_one_file(tmp_path):
    pytest.importorskip("apsw")
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job()])
        await refused(path, "is open in this process through sqlite3", scheme="sqlite+apsw")
        (tmp_path / "link.db").symlink_to(path)
        await refused(tmp_path / "link.db", "is open in this process through sqlite3", scheme="sqlite+apsw")
    async with store_at(path, scheme="sqlite+apsw") as store:
        await store.enqueue([job()])


async def test_the_file_is_never_opened_by_us(tmp_path):
    """open() and close() of the database in our process would drop SQLite's locks on it."""
    path = tmp_path / "jobs.db"
    opened = []
    watching = True

    def audit(event, arguments):
        if watching and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(audit)
    async with store_at(path) as store:
        store.listen("ready", lambda: None)
        await store.enqueue([job()])
        await store.durability()
    watching = False
    assert not [name for name in opened if name.startswith(str(path)) and f"{path}-perdure" not in name]


async def test_a_full_disk_is_told_and_healed(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store._shared.database.alone(lambda c: c.rows("pragma max_page_count=60"))
        with pytest.raises(StoreError, match="the disk is full; make room and go on"):
            await store.enqueue([job(payload=f'"{"x" * 4000}"') for _ in range(100)])
        await store._shared.database.alone(lambda c: c.rows("pragma max_page_count=100000"))
        await store.enqueue([job()])
