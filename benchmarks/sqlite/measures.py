"""What is measured on SQLite beside the rest: the disk's own share of a pickup.

Between an enqueue in one process and the handler in another lie two commits, one after the other, whoever makes them. How
long two bare commits take, of one small row each and with the same journal, says how much of a pickup is the disk's.
"""

import time
from collections.abc import Mapping
from statistics import median

from benchmarks.contender import Contender, gaps
from benchmarks.measures import Figures, Measure, Plan
from benchmarks.results import FIGURES, Figure
from benchmarks.spawn import Spawner

from .holdfast import FILE
from .journal import uses_wal
from .raw import bare_commits, driver_of, opened

TWO_COMMITS = Figure("two_commits", "two bare commits", "ms", "low")
_until = 1 + [figure.key for figure in FIGURES].index("latency_p99")
SUITE_FIGURES = (*FIGURES[:_until], TWO_COMMITS, *FIGURES[_until:])


def measures(contender: type[Contender]) -> Mapping[str, Measure]:
    return {"two commits": two_commits} if contender.ours else {}


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
