"""What is compared. Each measure is one that the other benchmarks have, at a size that takes a few seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..contender import Contender
from ..measures import Figures, Plan, cpu_figures, drain, enqueue, latency
from ..results import Figure
from ..spawn import Spawner

LIMIT = 25  # jobs that may run at once in the limited drain: half of the slots


@dataclass(frozen=True)
class Measure:
    text: str
    run: Callable[[Spawner, type[Contender], Plan], Figures]
    figures: Sequence[Figure]


def _drain(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    return drain(spawner, contender, plan, mode="loop")


def _limited(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    smaller = replace(plan, jobs=max(plan.jobs // 4, 10))
    figures = drain(spawner, contender, smaller, mode="loop", limit=LIMIT)
    return {key.replace("drain", "limited"): value for key, value in figures.items()}


def _bulk(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    singles = replace(plan, jobs=max(plan.jobs // 4, 10))  # of which a tenth is enqueued
    return {
        **enqueue(spawner, contender, plan, way="bulk"),
        **enqueue(spawner, contender, singles, way="single"),
    }


def _flows(spawner: Spawner, contender: type[Contender], plan: Plan) -> Figures:
    return {
        **_flow(spawner, contender, "chains", max(plan.jobs // 100, 20)),
        **_flow(spawner, contender, "fans", max(plan.jobs // 8, 20)),
    }


def _flow(spawner: Spawner, contender: type[Contender], name: str, size: int) -> Figures:
    with spawner.fresh_place() as place:
        spawner.run(place, contender, "prepare")
        result = spawner.run(place, contender, "flow", measure=name, size=size)
    figures = {f"{name}_{key}": value for key, value in result.items() if value is not None}
    return {**figures, **cpu_figures(name, [result], result["jobs"])}


def _wall(key: str, title: str, unit: str, better: Literal["high", "low"] = "high") -> Figure:
    return Figure(key, title, unit, better)


def _cpu(key: str, title: str) -> tuple[Figure, Figure]:
    return (
        Figure(f"{key}_cpu", f"{title}: CPU", "µs/job", "low"),
        Figure(f"{key}_server_cpu", f"{title}: CPU of the server", "µs/job", "low"),
    )


MEASURES = {
    "drain": Measure(
        "jobs that do nothing, one worker with 50 slots",
        _drain,
        (_wall("drain", "drain", "jobs/s"), *_cpu("drain", "drain")),
    ),
    "limited": Measure(
        f"the same under one limit: {LIMIT} may run at once",
        _limited,
        (_wall("limited", "limited drain", "jobs/s"), *_cpu("limited", "limited drain")),
    ),
    "pickup": Measure(
        "from the enqueue in one process to the handler in an idle worker",
        latency,
        (
            _wall("latency_p50", "pickup p50", "ms", "low"),
            _wall("latency_p99", "pickup p99", "ms", "low"),
            *_cpu("latency", "pickup"),
        ),
    ),
    "bulk": Measure(
        "enqueue in lists of 5,000, and one by one",
        _bulk,
        (
            _wall("enqueue_bulk", "enqueue, lists", "jobs/s"),
            *_cpu("enqueue_bulk", "enqueue, lists"),
            _wall("enqueue_single", "enqueue, one by one", "jobs/s"),
            *_cpu("enqueue_single", "enqueue, one by one"),
        ),
    ),
    "flows": Measure(
        "chains of small jobs, and one job, then many, then one that joins them",
        _flows,
        (
            _wall("chains_one", "one chain", "steps/s"),
            _wall("chains_many", "100 chains by Continue", "steps/s"),
            _wall("chains_declared", "100 chains declared", "steps/s"),
            *_cpu("chains", "chains"),
            _wall("fans_join", "fan joined after", "ms", "low"),
            *_cpu("fans", "fan"),
        ),
    ),
}
