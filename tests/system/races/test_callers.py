"""The law of a caller's transaction: only INSERT and plain SELECT, and its durability is the caller's own."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from perdure import Perdure, Unique

ALLOWED = {
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA,
}  # fmt: skip


@pytest.fixture
def app(tmp_path):
    return Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")


async def test_nothing_but_insert_and_plain_select(app, tmp_path):
    @app.task
    async def work() -> None: ...

    async with app:
        uniques = [Unique("k", scope=scope) for scope in ("waiting", "active", "any")]
        uniques.append(Unique("k", scope="window", window=60))
        for unique in uniques:
            await work.using(unique=unique).enqueue()
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("begin")
        done: dict[int, set[str]] = {}
        connection.set_authorizer(lambda *told: _noted(done, *told))
        for options in [{}, {"delay": 60}, *({"unique": unique} for unique in uniques), {"unique": Unique("new")}]:
            await work.using(**options, connection=connection).enqueue()
        connection.set_authorizer(None)
        connection.rollback()
        connection.close()
    assert sqlite3.SQLITE_INSERT in done
    assert done.keys() <= ALLOWED, done


async def test_a_callers_session_that_does_not_sync_is_warned_of_once(app, tmp_path, caplog):
    @app.task
    async def work() -> None: ...

    async with app:
        await work.enqueue()
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("pragma synchronous=off")
        with caplog.at_level(logging.WARNING, "perdure"):
            for _ in range(2):
                connection.execute("begin immediate")
                await work.using(connection=connection).enqueue()
                connection.execute("commit")
        connection.close()
    assert len([record for record in caplog.records if "synchronous" in record.getMessage()]) == 1


def _noted(done: dict[int, set[str]], action: int, *about: str | None) -> int:
    if about[0] not in ("sqlite_master", "sqlite_schema"):  # json_each is declared there, and written nowhere
        done.setdefault(action, set()).add(" ".join(each or "" for each in about))
    return sqlite3.SQLITE_OK
