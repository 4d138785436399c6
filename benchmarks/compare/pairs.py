"""Pairs of samples and what may be said about them: the ratio within each pair, its spread, and whether it is noise."""

from dataclasses import asdict, dataclass, field
from math import comb
from statistics import median, quantiles
from typing import Any

from ..results import Figure

CONFIDENCE = 0.95
NOISE = "no difference beyond noise"
FEWEST = 4  # pairs; of fewer, equal sides would too often look different
TOO_FEW = "too few pairs to tell"
TOO_SMALL = "too small to measure"


@dataclass(frozen=True)
class Summary:
    """All ratios are B/A."""

    a: float
    b: float
    ratio: float | None
    quartiles: tuple[float, float] | None
    extremes: tuple[float, float] | None
    interval: tuple[float, float] | None
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Pairs:
    """Samples of one figure on one store."""

    figure: Figure
    samples: list[tuple[float, float]] = field(default_factory=list)

    def summary(self) -> Summary:
        ratios = sorted(b / a for a, b in self.samples if a > 0 and b > 0)
        middle = median(ratios) if ratios else None
        interval = interval_of_median(ratios)
        return Summary(
            a=median(a for a, _ in self.samples),
            b=median(b for _, b in self.samples),
            ratio=middle,
            quartiles=_quartiles(ratios),
            extremes=(ratios[0], ratios[-1]) if ratios else None,
            interval=interval,
            verdict=_verdict(self.figure, middle, interval, len(ratios)),
        )


def interval_of_median(ordered: list[float]) -> tuple[float, float] | None:
    """The narrowest interval between two of the values that holds the true median with the wanted confidence.

    Below six values it is all of them, and `confidence` says how much less that is."""
    if not ordered:
        return None
    cut = _cut(len(ordered))
    return ordered[cut], ordered[-1 - cut]


def confidence(count: int) -> float:
    """How likely the interval of so many values holds the true median: each lies below or above it as a coin falls."""
    return 1 - _outside(count, _cut(count))


def _cut(count: int) -> int:
    """How many values may be left out at each end."""
    cut = 0
    while 2 * (cut + 1) < count and 1 - _outside(count, cut + 1) >= CONFIDENCE:
        cut += 1
    return cut


def _outside(count: int, cut: int) -> float:
    return float(2 * sum(comb(count, below) for below in range(cut + 1)) / 2**count)


def _quartiles(ratios: list[float]) -> tuple[float, float] | None:
    if len(ratios) < 2:
        return None
    first, _, third = quantiles(ratios, n=4, method="inclusive")
    return first, third


def _verdict(figure: Figure, ratio: float | None, interval: tuple[float, float] | None, pairs: int) -> str:
    if ratio is None or interval is None:
        return TOO_SMALL
    if pairs > 1 and interval[0] <= 1 <= interval[1]:
        return NOISE
    if pairs < FEWEST:
        return TOO_FEW
    better = (ratio > 1) == (figure.better == "high")
    return f"B is {'better' if better else 'worse'} by {100 * abs(ratio - 1):.1f} %"
