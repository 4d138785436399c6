"""What is measured on PostgreSQL beside the rest: two processes, a deep backlog, and a session that holds an old snapshot.

Databases that serve a queue alone are rare. Somewhere a report or a backup reads for an hour, and until it ends nothing
that the queue deletes or overwrites is really gone: every claim walks over it. So the drain is measured under an old
snapshot too, by its last window, when all jobs before it have left their traces.
"""

from collections.abc import Mapping
from contextlib import nullcontext

from benchmarks.contender import Contender
from benchmarks.measures import Figures, Measure, Plan, demand
from benchmarks.results import FIGURES, Figure
from benchmarks.spawn import Spawner
from benchmarks.together import DRAIN_TWO, drain_two

from .place import old_snapshot

PATIENCE = 550.0

OWN_FIGURES = (
    DRAIN_TWO,
    Figure("drain_backlog", "drain, deep backlog", "jobs/s", "high"),
    Figure("drain_churned", "drain, after churn", "jobs/s", "high"),
    Figure("drain_snapshot", "same, old snapshot held", "jobs/s", "high"),
)
COSTS = (
    Figure("drain_busy", "machine at work in a drain", "% of its cores", "low"),
    Figure("wal_bytes", "WAL per job", "bytes", "low"),
)
_throughput = [figure for figure in FIGURES if figure.unit == "jobs/s"]
SUITE_FIGURES = (*_throughput, *OWN_FIGURES, *FIGURES[len(_throughput) :], *COSTS)


def measures(contender: type[Contender]) -> Mapping[str, Measure]:
    own: dict[str, Measure] = {"drain by two": drain_two}
    if contender.long_runs:
        own |= {"backlog": drain_backlog, "churn": drain_churned, "churn snapshot": drain_snapshot}
    return own


def drain_backlog(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    """As many jobs as in a plain drain, with many more waiting behind them."""
    jobs = min(plan.drained(contender), plan.backlog)
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "fill", jobs=plan.backlog)
        result = spawner.run(
            place, contender, "drain_long", jobs=jobs, on_record=plan.backlog, window=jobs, patience=PATIENCE
        )
    demand(result["calls"] >= jobs, contender, f"{jobs} jobs wanted, {result['calls']} handler calls")
    demand(result["calls"] == result["distinct"], contender, "a job was handled twice")
    return {"drain_backlog": jobs / result["seconds"]}


def drain_churned(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    return {"drain_churned": _last_window(spawner, contender, plan, snapshot=False)}


def drain_snapshot(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    return {"drain_snapshot": _last_window(spawner, contender, plan, snapshot=True)}


def _last_window(spawner: Spawner, contender: type[Contender], plan: Plan, *, snapshot: bool) -> float:
    """The rate of the last tenth of the jobs."""
    window = max(plan.churn // 10, 1)
    jobs = window * 10
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "fill", jobs=jobs)
        with old_snapshot(place) if snapshot else nullcontext():
            result = spawner.run(
                place, contender, "drain_long", jobs=jobs, on_record=jobs, window=window, patience=PATIENCE
            )
    demand(result["calls"] == result["distinct"] == jobs, contender, f"{jobs} jobs, {result['calls']} handler calls")
    return window / float(result["windows"][-1])
