"""Addresses: what is meant is found, what is wrong is named, and no password is repeated."""

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import StoreError
from perdure.storage.urls import StoreUrl, opener, parse


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("memory://", StoreUrl("memory")),
        ("memory:", StoreUrl("memory")),
        ("sqlite:///jobs.db", StoreUrl("sqlite", Path("jobs.db"))),
        ("SQLite:///jobs.db", StoreUrl("sqlite", Path("jobs.db"))),
        ("sqlite:///data/jobs.db", StoreUrl("sqlite", Path("data/jobs.db"))),
        ("sqlite:////var/lib/jobs.db", StoreUrl("sqlite", Path("/var/lib/jobs.db"))),
        ("sqlite:///a%20b%3F.db", StoreUrl("sqlite", Path("a b?.db"))),
        ("sqlite:///:memory:", StoreUrl("sqlite", None)),
        ("sqlite+apsw:///jobs.db", StoreUrl("sqlite+apsw", Path("jobs.db"))),
        ("sqlite:///jobs.db?journal=wal", StoreUrl("sqlite", Path("jobs.db"), {"journal": "wal"})),
    ],
)
def test_what_is_meant(url, meant):
    assert parse(url) == meant


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "begins with a scheme"),
        ("jobs.db", "begins with a scheme"),
        ("/var/lib/jobs.db", "begins with a scheme"),
        ("sqlit:///jobs.db", "did you mean sqlite://"),
        ("memroy://", "did you mean memory://"),
        ("postgress://x", "did you mean postgres"),
        ("sqlite+aiosqlite:///jobs.db", "'sqlite.aiosqlite': Perdure chooses the driver itself, write sqlite:///"),
        ("sqlite+pysqlite:///jobs.db", "write sqlite:///"),
        ("sqlite+apws:///jobs.db", "did you mean sqlite.apsw://"),
        ("postgresql+psycopg://u:secret@h/d", "Perdure chooses the driver itself, write postgresql://"),
        ("postgresql+asyncpg://u:secret@h/d", "write postgresql://"),
        ("postgres+psycopg2://u:secret@h/d", "write postgres://"),
        ("mongodb+svr://u:secret@h/d", "did you mean mongodb.srv://"),
        ("mysql+pymysql://u:secret@h/d", "known are memory, sqlite, sqlite"),
        ("amqp://x", "known are memory, sqlite, sqlite"),
        ("sqlite://jobs.db", "two slashes are too few: did you mean sqlite:///jobs.db"),
        ("sqlite:/jobs.db", "one slash is too few: did you mean sqlite:///jobs.db"),
        ("sqlite:jobs.db", "none is too few: did you mean sqlite:///jobs.db"),
        ("sqlite://", "did you mean sqlite:///:memory:"),
        ("sqlite:///", "names a file"),
        ("sqlite:///data/", "names a file"),
        ("sqlite:///jobs.db?jurnal=wal", "unknown option 'jurnal' of sqlite: did you mean journal"),
        ("sqlite:///jobs.db?journal=delete", "one of auto, wal, persist, truncate, not 'delete'"),
        ("sqlite:///jobs.db?journal", "look like .journal=auto"),
        ("sqlite:///jobs.db#x", "write %23"),
        ("sqlite:///a%00b", "NUL"),
        ("memory://x", "takes nothing behind it"),
        ("sqlite://u:secret@h/jobs.db", "three slashes before the path"),
        ("postgresq://u:secret@h/d", "did you mean postgresql://"),
        (7, "not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_wrong(url, message):
    with pytest.raises(StoreError, match=message) as raised:
        parse(url)
    assert "secret" not in str(raised.value)


def test_a_wrong_durability():
    with pytest.raises(StoreError, match='"full", "normal" or "relaxed"'):
        opener("memory://", durability="high")


def test_memory_is_one_store():
    make = opener("memory://")
    assert make() is make()


async def test_a_later_change_of_directory_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    make = opener("sqlite:///jobs.db")
    monkeypatch.chdir(tmp_path / "two")
    store = make()
    await store.open()
    await store.close()
    assert (tmp_path / "one" / "jobs.db").exists()
    assert not list((tmp_path / "two").iterdir())


def test_no_driver_is_imported_for_an_address():
    code = (
        "import sys; from perdure.storage.urls import opener; opener('sqlite:///x.db');"
        "print([name for name in ('sqlite3', 'apsw', 'ctypes', 'perdure.storage.sqlite') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], capture_output=True, text=True
    )
    assert ran.stdout == "[]\n", ran.stderr
