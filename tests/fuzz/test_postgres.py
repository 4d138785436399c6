"""One bad value never stops anything else on PostgreSQL."""

from __future__ import annotations

import os

from ..real_servers import server
from .harness import run
from .postgres import PostgresTarget

SEED = int(os.environ.get("PERDURE_SEED") or 17)
COUNT = int(os.environ.get("PERDURE_FUZZ_COUNT") or 1_500)


async def test_postgres():
    report = await run(PostgresTarget(server("postgres").fresh()), seed=SEED, count=COUNT, at_once=250)
    print(report.table())
