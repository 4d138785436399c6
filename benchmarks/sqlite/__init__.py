"""Perdure and its peers on an embedded SQLite file."""

import sqlite3
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from benchmarks.suite import Suite

from .goals import goals
from .huey import HueyNoSync, HueySync
from .litequeue import Litequeue
from .measures import SUITE_FIGURES, measures
from .perdure import PerdureApsw, PerdureSqlite
from .persistqueue import PersistQueue
from .raw import raw_labels, raw_rate
from .taskito import Taskito


def _machine() -> Sequence[str]:
    lines = [f"SQLite {sqlite3.sqlite_version} (standard library)"]
    if find_spec("apsw"):
        lines.append(f"SQLite {import_module('apsw').sqlite_lib_version()} (apsw)")
    return lines


SUITE = Suite(
    name="sqlite",
    title="SQLite",
    contenders=(PerdureSqlite, PerdureApsw, HueyNoSync, HueySync, Litequeue, PersistQueue, Taskito),
    raw_labels=raw_labels,
    raw_rate=raw_rate,
    goals=goals,
    machine=_machine,
    figures=SUITE_FIGURES,
    measures=measures,
    remarks=(
        "Perdure claims up to 1,000 jobs at a time and holds up to 3,000 jobs that have not started. It stores "
        "completions together with the next claim, at most 10 ms later while other handlers run. The lease is 60 s "
        "and is renewed. If a worker is killed, the jobs it held and the completions it had not stored run again.",
        "For the share of the raw limit, a drain runs between two runs of the raw script with the same driver and journal.",
        "Two bare commits: two commits of one small row each, one after the other, with the same driver and journal. "
        "This is the disk's part of a pickup.",
        "Queues that can only poll do so every millisecond, for the lowest latency that they can have. "
        "The CPU of the idle worker is measured with the same setting.",
        "litequeue and persist-queue have no worker, so the benchmark runs a loop of take, call and mark done. litequeue "
        "slows down as its backlog grows, so its rate holds only for the number of jobs given below.",
        "Where the figure for sync handlers equals the drain, the contender's handlers are always blocking functions.",
    ),
)
