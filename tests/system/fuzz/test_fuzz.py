"""One bad value never stops anything else, on any store and in any outbox."""

from __future__ import annotations

import pytest

from tests.support.real_servers import server

from .harness import Failure
from .stores import OUTBOXES, STORES, fuzz

SEED = 17
COUNT = {"sqlite+apsw": 400, "outbox-sqlite": 400, "outbox-postgres": 400}  # the others: 1,500


@pytest.mark.timeout(600)  # seconds, on a machine that does much else: alone it takes about one minute
@pytest.mark.parametrize("store", [*STORES, *OUTBOXES])
async def test_bad_values(store, tmp_path):
    count = COUNT.get(store, 1_500)
    try:
        report = await fuzz(store, tmp_path, server, seed=SEED, count=count)
    except Failure as failure:
        again = f"./dev fuzz {store} --seed {SEED} --count {count}"
        pytest.fail(f"{failure}\n`{again}` repeats it and names the mutation that is to blame")
    print(report.table())
    assert len(report.outcomes) == count
