"""The measures by name, and what their figures are called."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from .schedules import fire_at_once


@dataclass(frozen=True)
class Measure:
    """One measure: what it does, at which size, and its figures with their titles."""

    title: str
    run: Callable[[str, int], Awaitable[dict[str, float]]]
    size: int
    figures: Mapping[str, str]


MEASURES = {
    "schedules": Measure(
        "{size:,} schedules that fire in the same second, two workers",
        fire_at_once,
        10_000,
        {"on_record": "all jobs on record, ms", "all_run": "all jobs run, ms", "rate": "ticks/s"},
    ),
}
