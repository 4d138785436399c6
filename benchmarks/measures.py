"""The measurements, seen from the parent: which processes run in what order, and what makes a figure valid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, TypeVar

from .contender import WIDTH, Contender, Mode, Way
from .spawn import Failed, Spawner

T = TypeVar("T")
Figures = dict[str, float]
Measure = Callable[[Spawner, type[Contender], "Plan"], Figures]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 3
    jobs: int = 20_000
    samples: int = 200
    idle_seconds: float = 5.0
    backlog: int = 1_000_000
    churn: int = 500_000

    @property
    def singles(self) -> int:
        return max(self.jobs // 10, 10)

    @property
    def concurrent(self) -> int:
        return max(self.jobs // 5 // WIDTH, 1) * WIDTH

    @property
    def waits(self) -> int:
        """Jobs of 10 ms: a hundred for each of the 50 slots when the plan is whole."""
        return max(self.jobs // 4, 10)

    def drained(self, contender: type[Contender]) -> int:
        return max(int(self.jobs * contender.share), 10)


def measures_for(contender: type[Contender]) -> dict[str, Measure]:
    """What this contender can do, by name, in the order of a round."""
    ways: dict[str, Measure] = {
        f"enqueue {way}": partial(enqueue, way=way)
        for way in _in_order(contender.ways, ("single", "bulk", "concurrent"))
    }
    modes: dict[str, Measure] = {
        f"drain {mode}": partial(drain, mode=mode) for mode in _in_order(contender.modes, ("loop", "threads", "io"))
    }
    return {**ways, **modes, "latency": latency, "idle": idle}


MEASURES = (
    *(f"enqueue {way}" for way in ("single", "bulk", "concurrent")),
    *(f"drain {mode}" for mode in ("loop", "threads", "io")),
    "latency",
    "idle",
)


def enqueue(spawner: Spawner, contender: type[Contender], plan: Plan, *, way: Way) -> Figures:
    jobs = {"single": plan.singles, "bulk": plan.jobs, "concurrent": plan.concurrent}[way]
    with spawner.fresh_place() as place:
        result = spawner.run(place, contender, "enqueue", way=way, jobs=jobs)
    demand(result["stored"] == jobs, contender, f"{jobs} enqueued, {result['stored']} on record")
    return {f"enqueue_{way}": jobs / result["seconds"], **cpu_figures(f"enqueue_{way}", [result], jobs)}


def drain(spawner: Spawner, contender: type[Contender], plan: Plan, *, mode: Mode, limit: int | None = None) -> Figures:
    """With a `limit`, no more than so many jobs may run at once."""
    jobs = plan.waits if mode == "io" else plan.drained(contender)
    with spawner.fresh_place() as place:
        before = _prepared(spawner, contender, place) if mode == "loop" else None
        spawner.run(place, contender, "fill", jobs=jobs, limit=limit)
        result = spawner.run(place, contender, "drain", mode=mode, jobs=jobs, limit=limit)
        observed = {**contender.observed(place), **_written(spawner, place, before, jobs), **_busy(result)}
        observed |= cpu_figures("drain", [result], jobs)
    check_drain(contender, result, jobs)
    rate = jobs / result["seconds"]
    match mode:
        case "loop":
            same = {"drain_threads": rate} if contender.blocking_handlers else {}
            return {"drain": rate, **same, "memory": result["memory"], **observed}
        case "threads":
            return {"drain_threads": rate}
        case "io":
            return {"drain_io": rate}


def _prepared(spawner: Spawner, contender: type[Contender], place: Path) -> float | None:
    """What was written ahead by the time that the tables are there; None where nobody counts."""
    if spawner.written(place) is None:
        return None
    spawner.run(place, contender, "prepare")
    return spawner.written(place)


def _written(spawner: Spawner, place: Path, before: float | None, jobs: int) -> Figures:
    after = spawner.written(place)
    return {} if before is None or after is None else {"wal_bytes": (after - before) / jobs}


def _busy(result: dict[str, Any]) -> Figures:
    return {} if result.get("busy") is None else {"drain_busy": 100 * result["busy"]}


def cpu_figures(name: str, results: Sequence[dict[str, Any]], jobs: int) -> Figures:
    """CPU time for each job, in µs: of all these processes together, and of the server while the first of them measured."""
    own = [float(result["cpu"]) for result in results if result.get("cpu") is not None]
    served = results[0].get("server_cpu")
    return {
        **({} if len(own) < len(results) else {f"{name}_cpu": 1e6 * sum(own) / jobs}),
        **({} if served is None else {f"{name}_server_cpu": 1e6 * served / jobs}),
    }


def latency(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    with spawner.fresh_place() as place:
        ready = place / "worker-is-up"
        receiver = spawner.start(place, contender, "receive", samples=plan.samples, ready=str(ready))
        try:
            receiver.wait_for(ready)
            sent = spawner.run(place, contender, "send", samples=plan.samples, seed=plan.samples)
            received = receiver.result()
        finally:
            receiver.kill()
    delays = received["delays"]
    demand(len(delays) == plan.samples, contender, f"{plan.samples} sent, {len(delays)} picked up")
    cuts = quantiles(delays, n=100, method="inclusive")
    return {
        "latency_p50": cuts[49],
        "latency_p95": cuts[94],
        "latency_p99": cuts[98],
        **cpu_figures("latency", [received, sent], received.get("jobs", plan.samples)),
    }


def idle(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "fill", jobs=1)
        result = spawner.run(place, contender, "idle", seconds=plan.idle_seconds)
    return {"idle_cpu": result["cpu"] * 100}


def check_drain(contender: type[Contender], result: dict[str, Any], jobs: int) -> None:
    """A drain counts only when every handler was really called, once, and every completion is on record."""
    demand(result["calls"] == jobs, contender, f"{jobs} jobs, {result['calls']} handler calls")
    demand(result["distinct"] == jobs, contender, f"{jobs} jobs, {result['distinct']} different ones handled")
    demand(result["completed"] in (None, jobs), contender, f"{jobs} jobs, {result['completed']} completions on record")
    demand(result["waiting"] == 0, contender, f"{result['waiting']} jobs left after the drain")


def demand(holds: bool, contender: type[Contender], message: str) -> None:
    if not holds:
        raise Failed(f"{contender.key}: {message}")


def _in_order(chosen: frozenset[T], order: tuple[T, ...]) -> list[T]:
    return [item for item in order if item in chosen]
