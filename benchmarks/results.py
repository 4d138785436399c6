"""Figures of a run: samples by figure and contender, and what one may say about them."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One thing that is measured."""

    key: str
    title: str
    unit: str
    better: Literal["high", "low"]


FIGURES = (
    Figure("enqueue_single", "enqueue, one by one", "jobs/s", "high"),
    Figure("enqueue_bulk", "enqueue, bulk", "jobs/s", "high"),
    Figure("enqueue_concurrent", "enqueue, 64 at once", "jobs/s", "high"),
    Figure("drain", "drain", "jobs/s", "high"),
    Figure("drain_threads", "drain, sync handlers", "jobs/s", "high"),
    Figure("drain_io", "drain, 50 × 10 ms I/O", "jobs/s", "high"),
    Figure("latency_p50", "pickup p50", "ms", "low"),
    Figure("latency_p95", "pickup p95", "ms", "low"),
    Figure("latency_p99", "pickup p99", "ms", "low"),
    Figure("memory", "peak memory of the worker", "MB", "low"),
    Figure("idle_cpu", "idle worker", "% of a core", "low"),
)


STEADY = 2


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    rounds: int


@dataclass
class Results:
    """Everything a run found out; reports and goals read only this."""

    suite: str
    machine: list[str] = field(default_factory=list)
    plan: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    # Why those of them that were wanted are missing.
    reasons: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    raw: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, contender: str, figures: dict[str, float]) -> None:
        for figure, value in figures.items():
            self.samples.setdefault(figure, {}).setdefault(contender, []).append(value)

    def spread(self, figure: str, contender: str) -> Spread | None:
        values = self.samples.get(figure, {}).get(contender)
        return _spread(values) if values else None

    def median(self, figure: str, contender: str) -> float | None:
        spread = self.spread(figure, contender)
        return spread.median if spread else None

    def raw_spread(self, label: str) -> Spread | None:
        values = self.raw.get(label)
        return _spread(values) if values else None

    def advantage(self, figure: Figure, own: str, other: str) -> float | None:
        """How many times better `own` is than `other`: faster, shorter or smaller."""
        ours, theirs = self.median(figure.key, own), self.median(figure.key, other)
        if not ours or not theirs:
            return None
        return ours / theirs if figure.better == "high" else theirs / ours

    def disturbances(self, cores: int) -> list[str]:
        """Why figures of this run should not be trusted; judged by what no contender has a part in."""
        found = []
        if self.loads and max(self.loads) > 1.5 * cores:
            found.append(f"the load reached {max(self.loads):.1f} on {cores} cores")
        uneven = [label for label, values in self.raw.items() if max(values) > STEADY * min(values)]
        if uneven:
            found.append(f"{len(uneven)} of {len(self.raw)} raw limits differ by more than {STEADY} × between rounds")
        return found

    def as_dict(self) -> dict[str, Any]:
        content = asdict(self)
        content["medians"] = {
            figure: {contender: median(values) for contender, values in by_contender.items()}
            for figure, by_contender in self.samples.items()
        }
        return content


def _spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))
