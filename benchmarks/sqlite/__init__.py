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
        "Perdure claims up to 1,000 jobs at a time, holds up to 3,000 that have not begun beside those in its slots, and "
        "stores completions together with the next claim, after 10 ms at the latest while others run; lease 60 s, renewed. "
        "A worker that is killed leaves what it held and what was not yet stored to run again.",
        "The share of the raw limit is that of a drain between two runs of the raw script, of the same driver and journal.",
        "Two bare commits: one after the other, of one small row each, with the same driver and journal and no queue around "
        "them. That much of a pickup is the disk's.",
        "Queues that can only poll do so every millisecond, which is the least latency they can have; "
        "the idle worker's share of a core is measured with the same setting.",
        "litequeue and persist-queue have no worker: a plain loop of take, call, mark done stands for it. litequeue "
        "slows down as its backlog grows, so its rate holds for the number of jobs given below.",
        "Where the figure for sync handlers equals the drain, the contender's handlers are always blocking functions.",
    ),
)
