"""Graphile Worker, in Node: the fastest queue on PostgreSQL that we know of. Its side of a measurement is child.mjs."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import ROOT, SLOTS, Contender, Durability, Mode, Way
from benchmarks.probe import Probe

HERE = Path(__file__).parent
MODULES = Path(os.environ.get("HOLDFAST_BENCH_NODE") or ROOT / ".bench-node")


class Graphile(Contender):
    """Everything runs in Node; the methods that would run here are never called."""

    key = "graphile"
    title = "Graphile Worker (Node)"
    module = "graphile-worker"
    distribution = "graphile-worker"
    ways = frozenset({"single", "bulk", "concurrent"})
    modes = frozenset({"loop", "io"})
    blocking_handlers = False
    long_runs = True
    settings = f"concurrency {SLOTS}, local queue of 500, completions batched (completeJobBatchDelay 0)"
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="its jobs, up to 500, run again after four hours",
        keeps="nothing: finished jobs are deleted",
    )

    @classmethod
    def program(cls) -> Sequence[str]:
        return ("env", f"HOLDFAST_BENCH_NODE={MODULES}", "node", str(HERE / "child.mjs"))

    @classmethod
    def version(cls) -> str | None:
        described = MODULES / "node_modules" / "graphile-worker" / "package.json"
        if shutil.which("node") is None or not described.exists():
            return None
        return str(json.loads(described.read_text())["version"])

    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        raise NotImplementedError

    def fill(self, texts: Sequence[str]) -> None:
        raise NotImplementedError

    def waiting(self) -> int:
        raise NotImplementedError

    def completed(self) -> int | None:
        raise NotImplementedError

    def work(self, probe: Probe, mode: Mode) -> None:
        raise NotImplementedError

    def send(self, gaps: Sequence[float]) -> None:
        raise NotImplementedError
