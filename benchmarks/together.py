"""A drain by several processes: they begin together, and every job is still handled once."""

from pathlib import Path

from .contender import Contender
from .measures import Figures, Plan, demand
from .results import Figure
from .spawn import Spawner

PROCESSES = 2
# So many jobs that no process can have taken them all at one go.
SHARED_BY_ALL = 10_000
DRAIN_TWO = Figure("drain_two", f"drain, {PROCESSES} processes", "jobs/s", "high")
TOGETHER = (
    f"Drain by {PROCESSES} processes: twice the jobs, workers begin together, and every job is still handled once."
)


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
    busy = [result for result in results if result["calls"]]
    seconds = max(result["ended"] for result in busy) - min(result["began"] for result in busy)
    return {"drain_two": jobs / seconds}


def _distinct(place: Path) -> int:
    """Jobs that were handled by any of the processes."""
    seen = [(place / f"seen-{own}").read_bytes() for own in range(PROCESSES)]
    return sum(1 for marks in zip(*seen, strict=True) if any(marks))
