"""What is measured on PostgreSQL beside the rest: two processes, a deep backlog, and a session that holds an old snapshot.

Databases that serve a queue alone are rare. Somewhere a report or a backup reads for an hour, and until it ends nothing
that the queue deletes or overwrites is really gone: every claim walks over it. So the drain is measured under an old
snapshot too, by its last window, when all jobs before it have left their traces.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.measures import Figures, Measure, Plan, demand
from benchmarks.results import FIGURES, Figure
from benchmarks.spawn import Spawner

from .place import old_snapshot

PROCESSES = 2
PATIENCE = 550.0
# So many jobs that no process can have taken them all at one go.
SHARED_BY_ALL = 10_000

OWN_FIGURES = (
    Figure("drain_two", "drain, 2 processes", "jobs/s", "high"),
    Figure("drain_backlog", "drain, deep backlog", "jobs/s", "high"),
    Figure("drain_churned", "drain, after churn", "jobs/s", "high"),
    Figure("drain_snapshot", "same, old snapshot held", "jobs/s", "high"),
    Figure("wal_bytes", "WAL per job", "bytes", "low"),
)
_throughput = [figure for figure in FIGURES if figure.unit == "jobs/s"]
SUITE_FIGURES = (*_throughput, *OWN_FIGURES[:-1], *FIGURES[len(_throughput) :], OWN_FIGURES[-1])


def measures(contender: type[Contender]) -> Mapping[str, Measure]:
    own: dict[str, Measure] = {"drain by two": drain_two}
    if contender.long_runs:
        own |= {"backlog": drain_backlog, "churn": drain_churned, "churn, snapshot": drain_snapshot}
    return own


def drain_two(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    jobs = plan.drained(contender) * PROCESSES
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "fill", jobs=jobs)
        children = [
            spawner.start(place, contender, "drain_shared", jobs=jobs, folder=str(place), own=own, processes=PROCESSES)
            for own in range(PROCESSES)
        ]
        try:
            for own, child in enumerate(children):
                child.wait_for(place / f"ready-{own}")
            (place / "gate").touch()
            results = [child.result() for child in children]
        finally:
            for child in children:
                child.kill()
        distinct = _distinct(place)
    calls = sum(result["calls"] for result in results)
    demand(calls == jobs, contender, f"{jobs} jobs, {calls} handler calls of {PROCESSES} processes")
    demand(distinct == jobs, contender, f"{jobs} jobs, {distinct} different ones handled")
    demand(
        jobs < SHARED_BY_ALL or all(result["calls"] for result in results), contender, "one process did all the work"
    )
    seconds = max(result["ended"] for result in results) - min(result["began"] for result in results)
    return {"drain_two": jobs / seconds}


def _distinct(place: Path) -> int:
    """Jobs that were handled by any of the processes."""
    seen = [(place / f"seen-{own}").read_bytes() for own in range(PROCESSES)]
    return sum(1 for marks in zip(*seen, strict=True) if any(marks))


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
