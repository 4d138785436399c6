"""How much of everything a run does, and the figures of each case."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

STORES = ("sqlite", "postgres", "valkey", "mongo")


@dataclass(frozen=True)
class Plan:
    """The sizes of the cases, each for one store and one round."""

    rounds: int = 3
    io_jobs: int = 20_000
    cpu_jobs: int = 200
    cpu_seconds: float = 0.02  # of one job
    arriving: int = 1_000  # jobs a second
    arriving_for: float = 10.0
    held: int = 10_000
    held_lease: float = 9.0
    held_for: float = 20.0
    idle_for: float = 15.0
    drained_jobs: int = 20_000  # with and without, in turn
    turns: int = 3
    limited_jobs: int = 6_000  # by 25
    stuck_jobs: int = 50_000  # under a limit that is used up
    large_tenant: int = 1_000_000  # jobs of one tenant, in a fair queue
    small_jobs: int = 20  # of another, one by one

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


QUICK = Plan(
    rounds=1,
    io_jobs=300,
    cpu_jobs=8,
    cpu_seconds=0.005,
    arriving=100,
    arriving_for=1.0,
    held=200,
    held_lease=1.5,
    held_for=2.0,
    idle_for=1.5,
    drained_jobs=200,
    turns=1,
    limited_jobs=200,
    stuck_jobs=300,
    large_tenant=2_000,
    small_jobs=3,
)


@dataclass(frozen=True)
class Figure:
    key: str
    title: str
    digits: int = 0


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    text: str
    figures: Sequence[Figure]


CASES = (
    Case(
        "io",
        "50 slots, 10 ms of waiting",
        "All jobs wait; each handler sleeps for 10 ms. 5,000 jobs/s is what 50 slots can do at most.",
        (Figure("rate", "jobs/s"), Figure("share", "% of what is possible"), Figure("cpu", "worker's CPU, µs a job")),
    ),
    Case(
        "cpu",
        "Computing jobs in processes",
        'Handlers compute in Python, in child processes (`run_in="process"`), and beside it in this process\'s threads.',
        (
            Figure("rate", "jobs/s, processes"),
            Figure("threads", "jobs/s, threads"),
            Figure("times", "times as many", 2),
        ),
    ),
    Case(
        "pickup",
        "Jobs that arrive",
        "Another process enqueues them one by one at a steady pace. From its call to the first line of the handler.",
        (
            Figure("p50", "p50 ms", 1),
            Figure("p99", "p99 ms", 1),
            Figure("arrived", "arrived, jobs/s"),
            Figure("cpu", "worker's CPU, %", 1),
        ),
    ),
    Case(
        "renewals",
        "Renewals of running jobs",
        "So many handlers do nothing for a long time, under a lease; all holds must stand at the end.",
        (
            Figure("renewed", "holds renewed/s"),
            Figure("took", "ms for all of them"),
            Figure("cpu", "worker's CPU, %", 1),
            Figure("lost", "holds lost"),
        ),
    ),
    Case(
        "idle",
        "A worker with nothing to do",
        "What it costs while nothing happens.",
        (Figure("cpu", "CPU, %", 2), Figure("questions", "questions to the store, /s", 2)),
    ),
    Case(
        "limits",
        "Limits on and off",
        "The same drain of jobs that do nothing: without a limit and under one that is never reached, in turn (the share is "
        "the median of the pairs), with 25 that may run at once (so that 25 go with every round trip), and with those "
        "beside many jobs whose own limit is used up.",
        (
            Figure("off", "jobs/s without"),
            Figure("on", "jobs/s under one"),
            Figure("share", "% of it"),
            Figure("narrow", "jobs/s by 25"),
            Figure("beside", "the same beside many that must wait"),
        ),
    ),
    Case(
        "middleware",
        "Middleware",
        "The same drain of jobs that do nothing, without middleware, with two around every attempt, and with these and a "
        "limit that is never reached, in turn; the shares are medians of the turns.",
        (
            Figure("off", "jobs/s without"),
            Figure("on", "jobs/s with two"),
            Figure("share", "% of it"),
            Figure("both", "jobs/s with two, under a limit"),
            Figure("both_share", "% of it"),
        ),
    ),
    Case(
        "fair",
        "A large tenant and a small one",
        "One tenant's jobs fill a fair queue (lists of 5,000) and are worked off, each handler waits for 10 ms. Now and "
        "then another tenant enqueues one job: how many of the first tenant's begin between its call and its handler.",
        (
            Figure("large", "jobs of the large tenant"),
            Figure("filled", "enqueued, jobs/s"),
            Figure("rate", "worked off, jobs/s"),
            Figure("before", "begun before it, median"),
            Figure("most", "at most"),
            Figure("p50", "p50 ms", 1),
            Figure("longest", "longest ms", 1),
        ),
    ),
)


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
