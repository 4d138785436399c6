"""What Perdure must reach on SQLite, checked against a run."""

from collections.abc import Sequence

from benchmarks.goals import at_least, at_most, ratio
from benchmarks.results import Results
from benchmarks.suite import Goal

OWN = ("perdure", "perdure-apsw")


def goals(results: Results) -> Sequence[Goal]:
    return [goal for own in OWN if own in results.versions for goal in _goals_of(own, results)]


def _goals_of(own: str, results: Results) -> list[Goal]:
    drain = results.median("drain", own)
    single = results.median("enqueue_single", own)
    wal = bool(results.median("wal", own))
    return [
        at_least(
            f"{own}: drain ≥ 4 × Huey, fsync off (aim 6 ×)", ratio(drain, results.median("drain", "huey")), 4, "×"
        ),
        at_least(
            f"{own}: drain ≥ 10 × Huey, fsync on (aim 15 ×)",
            ratio(drain, results.median("drain", "huey-fsync")),
            10,
            "×",
        ),
        at_least(
            f"{own}: bulk enqueue ≥ {'100k/s in WAL' if wal else '50k/s with a rollback journal'}",
            results.median("enqueue_bulk", own),
            100_000 if wal else 50_000,
            "jobs/s",
        ),
        at_least(
            f"{own}: 64 enqueues at once ≥ 10 × one by one",
            ratio(results.median("enqueue_concurrent", own), single),
            10,
            "×",
        ),
        at_most(f"{own}: pickup p50 ≤ 3 ms", results.median("latency_p50", own), 3, "ms"),
        at_most(f"{own}: pickup p99 ≤ 12 ms", results.median("latency_p99", own), 12, "ms"),
        at_least(f"{own}: drain ≥ 50 % of the raw limit by 1,000", results.median("raw_share", own), 50, "%"),
        at_most(f"{own}: worker memory ≤ 60 MB", results.median("memory", own), 60, "MB"),
        at_most(f"{own}: idle worker ≤ 0.5 % of a core", results.median("idle_cpu", own), 0.5, "%"),
    ]
