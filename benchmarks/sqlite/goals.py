"""What Holdfast must reach on SQLite, checked against a run."""

from collections.abc import Sequence

from benchmarks.results import Results
from benchmarks.suite import Goal

OWN = ("holdfast", "holdfast-apsw")


def goals(results: Results) -> Sequence[Goal]:
    return [goal for own in OWN if own in results.versions for goal in _goals_of(own, results)]


def _goals_of(own: str, results: Results) -> list[Goal]:
    drain = results.median("drain", own)
    single = results.median("enqueue_single", own)
    wal = bool(results.median("wal", own))
    return [
        _at_least(
            f"{own}: drain ≥ 4 × Huey, fsync off (aim 6 ×)", _ratio(drain, results.median("drain", "huey")), 4, "×"
        ),
        _at_least(
            f"{own}: drain ≥ 10 × Huey, fsync on (aim 15 ×)",
            _ratio(drain, results.median("drain", "huey-fsync")),
            10,
            "×",
        ),
        _at_least(
            f"{own}: bulk enqueue ≥ {'100k/s in WAL' if wal else '50k/s with a rollback journal'}",
            results.median("enqueue_bulk", own),
            100_000 if wal else 50_000,
            "jobs/s",
        ),
        _at_least(
            f"{own}: 64 enqueues at once ≥ 10 × one by one",
            _ratio(results.median("enqueue_concurrent", own), single),
            10,
            "×",
        ),
        _at_most(f"{own}: pickup p50 ≤ 3 ms", results.median("latency_p50", own), 3, "ms"),
        _at_most(f"{own}: pickup p99 ≤ 12 ms", results.median("latency_p99", own), 12, "ms"),
        _at_least(f"{own}: drain ≥ 50 % of the raw limit by 500", _share_of_raw(own, wal, drain, results), 50, "%"),
        _at_most(f"{own}: worker memory ≤ 60 MB", results.median("memory", own), 60, "MB"),
        _at_most(f"{own}: idle worker ≤ 0.5 % of a core", results.median("idle_cpu", own), 0.5, "%"),
    ]


def _share_of_raw(own: str, wal: bool, drain: float | None, results: Results) -> float | None:
    driver = "apsw" if own.endswith("apsw") else "sqlite3"
    raw = results.raw_spread(f"{driver} {'wal' if wal else 'truncate'} by 500")
    share = _ratio(drain, raw.median if raw else None)
    return None if share is None else share * 100


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def _at_least(text: str, value: float | None, bound: float, unit: str) -> Goal:
    return Goal(text, value, value is not None and value >= bound, _shown(value, unit))


def _at_most(text: str, value: float | None, bound: float, unit: str) -> Goal:
    return Goal(text, value, value is not None and value <= bound, _shown(value, unit))


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"
