"""What Perdure must reach on Redis and Valkey, checked against a run."""

from collections.abc import Sequence

from benchmarks.goals import at_least, at_most, ratio
from benchmarks.results import Results
from benchmarks.suite import Goal

OWN = "perdure"
NODE = "bullmq-node"
PYTHON_PEERS = (
    "arq",
    "bullmq-python",
    "celery-prefork",
    "celery-threads",
    "dramatiq",
    "huey",
    "rq",
    "saq",
    "taskiq",
)


def goals(results: Results) -> Sequence[Goal]:
    if OWN not in results.versions:
        return []

    def own(figure: str) -> float | None:
        return results.median(figure, OWN)

    def against(figure: str, other: str | None) -> float | None:
        return None if other is None else ratio(own(figure), results.median(figure, other))

    best = _best_python_peer(results)
    raw = results.raw_spread("redis-py by 500")
    share = ratio(own("drain"), raw.median if raw else None)
    named = "" if best is None else f", which is {best} here"
    return [
        at_least(f"drain ≥ 10 × the best Python peer (aim 20 ×){named}", against("drain", best), 10, "×"),
        at_least("drain ≥ 2 × BullMQ on Node (aim 4 ×)", against("drain", NODE), 2, "×"),
        at_least("bulk enqueue ≥ 3 × BullMQ on Node", against("enqueue_bulk", NODE), 3, "×"),
        at_most("pickup p50 ≤ 2 ms", own("latency_p50"), 2, "ms"),
        at_most("pickup p99 ≤ 5 ms", own("latency_p99"), 5, "ms"),
        at_least("drain ≥ 50 % of the raw limit by 500", None if share is None else 100 * share, 50, "%"),
        at_most("worker memory ≤ 60 MB", own("memory"), 60, "MB"),
        at_most("idle worker ≤ 0.5 % of a core", own("idle_cpu"), 0.5, "%"),
    ]


def _best_python_peer(results: Results) -> str | None:
    drained = {peer: rate for peer in PYTHON_PEERS if (rate := results.median("drain", peer)) is not None}
    return max(drained, key=drained.__getitem__, default=None)
