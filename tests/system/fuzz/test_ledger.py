"""A ledger that cannot be read: a worker goes on with the open store, and whoever opens it gets an error of our own."""

from __future__ import annotations

import random

import pytest

from perdure import PerdureError
from perdure.storage.urls import opener
from tests.support.real_servers import server

from .stores import open_target
from .target import Missing, Refused
from .world import Scene

TRIED = 14  # values for each store, each in a store of its own


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mongo"])
async def test_a_ledger_that_cannot_be_read(store, tmp_path):
    chance = random.Random(17)
    for number in range(TRIED):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = open_target(store, folder, server, number)
        target.left_alone = {}
        scene = Scene(target.url)
        try:
            async with scene.app.worker(concurrency=2, poll=0.2, queues=["canary"]):
                await scene.canary()
                mutation = chance.choice([each for each in target.mutations() if each.table == "meta"])
                try:
                    mutation.write("")
                except (Refused, Missing):
                    continue
                await scene.canary()
                await _open(target.url, mutation.name)
        finally:
            target.close()
            await scene.app.close()


async def _open(url: str, name: str) -> None:
    for migrate in (False, True):
        store = opener(url, durability="relaxed", migrate=migrate)()
        try:
            await store.open()
        except PerdureError:
            continue
        except Exception as error:
            pytest.fail(f"{name}: opening raised {type(error).__name__}: {error}")
        finally:
            await store.close()
