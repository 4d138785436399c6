"""One bad value never stops anything else, on any store."""

from __future__ import annotations

import os

from .harness import run
from .sqlite import SqliteTarget

SEED = int(os.environ.get("PERDURE_SEED") or 17)
COUNT = int(os.environ.get("PERDURE_FUZZ_COUNT") or 0)


async def test_sqlite(tmp_path):
    report = await run(SqliteTarget(tmp_path / "fuzz.db"), seed=SEED, count=COUNT or 1_500)
    print(report.table())
