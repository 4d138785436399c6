"""What is measured on SQLite beside the rest: the disk's own share of a pickup, and the drain's share of the raw limit.

Between an enqueue in one process and the handler in another lie two commits, one after the other, whoever makes them. How
long two bare commits take, of one small row each and with the same journal, says how much of a pickup is the disk's.

A drain is compared with the raw limit just before and just after it: disks and shared machines change their speed within
minutes.
"""

import time
from collections.abc import Mapping
from statistics import mean, median

from benchmarks.contender import Contender, gaps
from benchmarks.measures import Figures, Measure, Plan, drain
from benchmarks.results import FIGURES, Figure
from benchmarks.spawn import Spawner

from .journal import uses_wal
from .perdure import FILE
from .raw import bare_commits, driver_of, opened

TWO_COMMITS = Figure("two_commits", "two bare commits", "ms", "low")
RAW_SHARE = Figure("raw_share", "drain, of the raw limit by 1,000 beside it", "%", "high")
_places = {figure.key: number for number, figure in enumerate(FIGURES, 1)}
SUITE_FIGURES = (
    *FIGURES[: _places["drain"]],
    RAW_SHARE,
    *FIGURES[_places["drain"] : _places["latency_p99"]],
    TWO_COMMITS,
    *FIGURES[_places["latency_p99"] :],
)


def measures(contender: type[Contender]) -> Mapping[str, Measure]:
    return {"raw share": raw_share, "two commits": two_commits} if contender.ours else {}


def raw_share(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "prepare")
        label = f"{driver_of(contender.key)} {'wal' if uses_wal(place / FILE) else 'truncate'} by 1000"
    before = spawner.raw(label, plan.jobs)
    drained = drain(spawner, contender, plan, mode="loop")["drain"]
    return {"raw_share": 100 * drained / mean([before, spawner.raw(label, plan.jobs)])}


def two_commits(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "prepare")
        journal = "wal" if uses_wal(place / FILE) else "persist"
        connection = opened(driver_of(contender.key), place / "bare.db", journal)
        took = []
        for number, gap in enumerate(gaps(plan.samples, plan.samples)):
            time.sleep(gap)
            took.append(bare_commits(connection, number))
        connection.close()
    return {"two_commits": 1000 * median(took)}
