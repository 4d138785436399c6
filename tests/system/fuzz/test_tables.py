"""Every table, key and collection that a migration makes is spoiled, and holds rows when it is."""

from __future__ import annotations

import random

import pytest

from tests.support.real_servers import server

from .harness import Fuzzer
from .outbox import PostgresOutboxTarget, SqliteOutboxTarget
from .stores import STORES, open_target
from .world import Scene

LEDGERS = {"sqlite": "meta", "sqlite+apsw": "meta", "postgres": "meta", "mongo": "meta"}


@pytest.mark.parametrize("store", STORES)
async def test_all_tables_are_spoiled_and_none_is_empty(store, tmp_path):
    target = open_target(store, tmp_path, server, 1)
    scene = Scene(target.url)
    try:
        mutations = await Fuzzer(target, scene, random.Random(1)).every()
        rows = target.rows()
    finally:
        target.close()
        await scene.app.close()
    spoiled = {mutation.table for mutation in mutations}
    assert set(target.left_alone) == {LEDGERS[store]} if store in LEDGERS else not target.left_alone
    assert spoiled | set(target.left_alone) == set(rows)
    assert [table for table, count in rows.items() if not count] == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_column_of_an_outbox_is_spoiled(kind, tmp_path):
    from perdure.storage.urls import outbox_opener

    url = server("postgres").fresh() if kind == "postgres" else f"sqlite:///{tmp_path / 'outbox.db'}"
    outbox = outbox_opener(url)()
    await outbox.open()
    target = PostgresOutboxTarget(url) if kind == "postgres" else SqliteOutboxTarget(tmp_path / "outbox.db")
    try:
        columns = {name for name, _ in target.columns()}
        spoiled = {mutation.field for mutation in target.mutations()}
    finally:
        target.close()
        await outbox.close()
    assert spoiled == columns
    assert columns >= {"enqueued_at", "set_aside_at", "min_version", "id", "queue", "job", "error"}
