"""A row of an outbox that cannot be read is set aside, and the others are moved."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from perdure.outbox.relay import Relay
from perdure.storage.outbox import OutboxState
from perdure.storage.postgres.address import address_of
from perdure.storage.urls import opener, outbox_opener
from perdure.testing.conformance.tools import job
from tests.support.real_servers import server

DEEP = "[" * 5_000 + "]" * 5_000


async def moved(outbox, store):
    async def the_outbox():
        return outbox

    async def the_store():
        return store

    await Relay(the_outbox, the_store).once()


@pytest.mark.parametrize("text", [b"\xff\xfe", b'{"a": "\xff"}', DEEP.encode(), b"nonsense"])
async def test_sqlite(tmp_path, text):
    path = tmp_path / "outbox.db"
    outbox, store = outbox_opener(f"sqlite:///{path}")(), opener("memory://", durability="relaxed")()
    await outbox.open()
    await store.open()
    bad, good = job(), job()
    raw = sqlite3.connect(path, isolation_level=None)
    for statement, rows in outbox.caller_statements([bad, good]).inserts:
        raw.execute(statement, (rows,))
    raw.execute("UPDATE perdure_outbox SET job = CAST(? AS TEXT) WHERE id = ?", (text, bad.id))
    await moved(outbox, store)
    assert [record and record.id for record in await store.get([bad.id, good.id])] == [None, good.id]
    raw.execute("UPDATE perdure_outbox SET error = CAST(? AS TEXT)", (text,))
    (aside,) = await outbox.list_aside(9)
    assert aside.id == bad.id
    assert await outbox.state() == OutboxState(0, None, 1)
    raw.close()
    await outbox.close()
    await store.close()


async def test_postgres():
    url = server("postgres").fresh()
    outbox, store = outbox_opener(url)(), opener("memory://", durability="relaxed")()
    await outbox.open()
    await store.open()
    bad, early, good = job(), job(), job()
    with psycopg.connect(address_of(url).dsn, autocommit=True) as raw:
        table = f'"{address_of(url).schema}".perdure_outbox'
        for statement, rows in outbox.caller_statements([bad, early, good]).inserts:
            raw.execute(statement.replace("?", "%s").encode(), (rows,))
        raw.execute(f"UPDATE {table} SET job = %s WHERE id = %s", (DEEP, bad.id))
        raw.execute(f"UPDATE {table} SET enqueued_at = %s WHERE id = %s", (-(1 << 63), early.id))
        assert (await outbox.state()).waiting == 3
        await moved(outbox, store)
        records = await store.get([bad.id, early.id, good.id])
        assert [record is not None for record in records] == [False, True, True]
        raw.execute(f"UPDATE {table} SET error = NULL")
    assert [aside.id for aside in await outbox.list_aside(9)] == [bad.id]
    assert await outbox.state() == OutboxState(0, None, 1)
    await outbox.close()
    await store.close()
