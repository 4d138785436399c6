"""What Perdure must reach on PostgreSQL, checked against a run."""

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

    def against(figure: str, other: str) -> float | None:
        return ratio(own(figure), results.median(figure, other))

    raw = results.raw_spread("psycopg by 500")
    return [
        at_least("drain ≥ 3 × PgQueuer (aim 5 ×)", against("drain", "pgqueuer"), 3, "×"),
        at_least("drain ≥ 1 × Graphile Worker, batched (aim 1.5 ×)", against("drain", "graphile"), 1, "×"),
        at_least("drain by 2 processes ≥ 1.2 × by one", ratio(own("drain_two"), own("drain")), 1.2, "×"),
        at_least(
            "drain with a deep backlog ≥ 90 % of the drain", _percent(own("drain_backlog"), own("drain")), 90, "%"
        ),
        at_least(
            "drain under an old snapshot ≥ 80 % of the same without",
            _percent(own("drain_snapshot"), own("drain_churned")),
            80,
            "%",
        ),
        at_least("bulk enqueue ≥ 3 × PgQueuer", against("enqueue_bulk", "pgqueuer"), 3, "×"),
        at_least("64 enqueues at once ≥ 10,000/s", own("enqueue_concurrent"), 10_000, "jobs/s"),
        at_most("pickup p50 ≤ 4 ms", own("latency_p50"), 4, "ms"),
        at_most("pickup p99 ≤ 9 ms", own("latency_p99"), 9, "ms"),
        at_most("WAL per job, with history, ≤ 1,500 bytes", own("wal_bytes"), 1_500, "bytes"),
        at_least("drain ≥ 50 % of the raw limit by 500", _percent(own("drain"), raw.median if raw else None), 50, "%"),
        at_most("worker memory ≤ 60 MB", own("memory"), 60, "MB"),
        at_most("idle worker ≤ 0.5 % of a core", own("idle_cpu"), 0.5, "%"),
    ]


def _percent(value: float | None, base: float | None) -> float | None:
    share = ratio(value, base)
    return None if share is None else share * 100
