"""What a job asked for at its death is stored in the same step as the death, whoever reports it: no crash falls between."""

from __future__ import annotations

import pytest

from perdure import Perdure, State
from perdure.core.ids import new_stamp
from perdure.flow.compensation import undo_write
from perdure.storage.contract import Claim, Filter, Want
from perdure.testing.conformance.tools import job
from perdure.upkeep.reap import reap
from tests.support.addresses import OF_EACH_KIND, address

FOR_EVER = 10**15


@pytest.mark.parametrize("store", ["memory", "sqlite", *OF_EACH_KIND])
async def test_what_a_job_asked_for_at_its_death_is_stored_with_it(store, tmp_path):
    async with Perdure(address(store, tmp_path)) as app:
        storage = await app._runtime.storage()
        dies = job(task="dies", lease=1, max_attempts=1)
        await storage.enqueue([dies])
        await storage.kv_write([undo_write(dies.id, job(task="alert"))])
        await storage.claim(Claim("killed", new_stamp(), (Want(1),)))
        lapsed = []
        while not lapsed:  # its lease is a millionth of a second
            lapsed = await storage.lapsed(10, FOR_EVER)
        assert await reap(storage, lapsed) == 1
        (dead,) = await storage.get([dies.id])
        alerts, _ = await storage.find(Filter(task="alert"), 10, None)
    assert (dead.state, dead.losses) == (State.DEAD, 1)
    assert [alert.state for alert in alerts] == [State.READY]
