"""What is measured on Redis beside the rest: two processes, and what a job costs the server."""

from collections.abc import Mapping

from benchmarks.contender import Contender
from benchmarks.measures import Figures, Measure, Plan
from benchmarks.results import FIGURES, Figure
from benchmarks.spawn import Spawner
from benchmarks.together import DRAIN_TWO, drain_two

from .place import occupied

COSTS = (
    Figure("server_bytes", "server's memory per waiting job", "bytes", "low"),
    Figure("wal_bytes", "append-only file per job", "bytes", "low"),
)
_throughput = [figure for figure in FIGURES if figure.unit == "jobs/s"]
SUITE_FIGURES = (*_throughput, DRAIN_TWO, *FIGURES[len(_throughput) :], *COSTS)


def measures(contender: type[Contender]) -> Mapping[str, Measure]:
    return {"drain by two": drain_two, "server memory": server_memory}


def server_memory(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    """Between one job and many, so that scripts and settings do not count."""
    jobs = plan.drained(contender)
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "fill", jobs=1)
        before = occupied(place)
        spawner.run(place, contender, "fill", jobs=jobs)
        after = occupied(place)
    return {"server_bytes": (after - before) / jobs}
