"""What Perdure must reach on MongoDB, checked against a run."""

from collections.abc import Sequence

from benchmarks.goals import at_least, at_most, ratio
from benchmarks.results import Results
from benchmarks.suite import Goal

OWN = "perdure"


def goals(results: Results) -> Sequence[Goal]:
    if OWN not in results.versions:
        return []

    def own(figure: str) -> float | None:
        return results.median(figure, OWN)

    raw = results.raw_spread("pymongo by 500")
    share = ratio(own("drain"), raw.median if raw else None)
    return [
        at_least(
            "drain ≥ 5 × a find_one_and_update loop", ratio(own("drain"), results.median("drain", "loop")), 5, "×"
        ),
        at_least("drain ≥ 50 % of the raw limit by 500", None if share is None else 100 * share, 50, "%"),
        at_most("worker memory ≤ 60 MB", own("memory"), 60, "MB"),
        at_most("idle worker ≤ 0.5 % of a core", own("idle_cpu"), 0.5, "%"),
    ]
