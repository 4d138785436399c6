"""One bad value never stops anything else on Redis and Valkey."""

from __future__ import annotations

import os

import pytest

from ..real_servers import server
from .harness import run
from .redis import RedisTarget

SEED = int(os.environ.get("PERDURE_SEED") or 17)
COUNT = int(os.environ.get("PERDURE_FUZZ_COUNT") or 1_500)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_redis(kind):
    report = await run(RedisTarget(server(kind).fresh(), SEED), seed=SEED, count=COUNT)
    print(report.table())
