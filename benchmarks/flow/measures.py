"""The measures by name, and what their figures are called."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from .chains import walk_chains
from .fans import fan_out_and_in
from .schedules import fire_at_once


@dataclass(frozen=True)
class Measure:
    """One measure: what it does, at which size, and its figures with their titles."""

    title: str
    run: Callable[[str, int], Coroutine[Any, Any, dict[str, float]]]
    size: int
    figures: Mapping[str, str]


MEASURES = {
    "chains": Measure(
        "Chains: steps a second of one with {size:,} steps, and of a hundred with a tenth of that each",
        walk_chains,
        1_000,
        {"one": "one chain", "many": "a hundred, by Continue", "declared": "a hundred, declared"},
    ),
    "fans": Measure(
        "One job, then {size:,} that wait for it, then one that waits for all of those",
        fan_out_and_in,
        10_000,
        {
            "enqueue": "all on record, ms",
            "children": "all of them run, ms",
            "join": "joined, ms",
            "progress": "reading how many are done, µs",
        },
    ),
    "schedules": Measure(
        "{size:,} schedules that fire in the same second, two workers",
        fire_at_once,
        10_000,
        {"on_record": "all jobs on record, ms", "all_run": "all jobs run, ms", "rate": "ticks/s"},
    ),
}
