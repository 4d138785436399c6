"""Graphile Worker, in Node: the fastest queue on PostgreSQL that we know of."""

import os
from pathlib import Path

from benchmarks.contender import ROOT, SLOTS, Durability
from benchmarks.node import NodeContender


class Graphile(NodeContender):
    key = "graphile"
    title = "Graphile Worker (Node)"
    module = "graphile-worker"
    distribution = "graphile-worker"
    folder = Path(__file__).parent
    modules = Path(os.environ.get("PERDURE_BENCH_NODE") or ROOT / ".bench-node")
    long_runs = True
    settings = f"concurrency {SLOTS}, local queue of 500, completions batched (completeJobBatchDelay 0)"
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="its jobs, up to 500, run again after four hours",
        keeps="nothing: finished jobs are deleted",
    )
