"""One bad value never stops anything else on MongoDB."""

from __future__ import annotations

import os

from ..real_servers import server
from .harness import run
from .mongo import MongoTarget

SEED = int(os.environ.get("PERDURE_SEED") or 17)
COUNT = int(os.environ.get("PERDURE_FUZZ_COUNT") or 1_500)


async def test_mongo():
    report = await run(MongoTarget(server("mongo").fresh(), SEED), seed=SEED, count=COUNT)
    print(report.table())
