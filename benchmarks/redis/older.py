"""Queues that do not take the newest driver: they have an environment of their own."""

import os
from pathlib import Path

from benchmarks.contender import ROOT
from benchmarks.elsewhere import ElsewhereContender


class OlderDriverContender(ElsewhereContender):
    python = Path(
        os.environ.get("PERDURE_BENCH_REDIS_OLDER_PYTHON") or ROOT / ".venv-bench-redis-older" / "bin" / "python"
    )
