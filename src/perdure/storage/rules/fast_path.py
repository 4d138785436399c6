"""Decides which jobs and changes are ordinary, and whether stores may use their fast paths for them.

A fast path is a shorter way for the most frequent case, with the same result as the general way. PERDURE_FAST_PATHS=0
in the environment switches all of them off: tests and measurements run both ways.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ...core.lifecycle import Change, HoldGuard, OrdinarySuccess
from ...core.record import NewJob, Record, UniformJobs, defaults_of

_ENABLED = os.environ.get("PERDURE_FAST_PATHS", "1") != "0"


def enabled() -> bool:
    """Whether fast paths may be used. Call it through its module, so that a test can patch it."""
    return _ENABLED


def kinds_of(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """A few of these jobs, at least one of every kind that is among them."""
    return [jobs.template] if isinstance(jobs, UniformJobs) else jobs


def ids_of(jobs: Sequence[NewJob]) -> Sequence[str]:
    """The ids of these jobs, without making the jobs of `UniformJobs`."""
    return jobs.ids if isinstance(jobs, UniformJobs) else [job.id for job in jobs]


def is_ordinary(job: NewJob) -> bool:
    """Whether a new job has its defaults in all fields but those of `OF_EVERY_JOB`."""
    return job.limits is None and is_ordinary_but_for_limits(job)


def is_ordinary_but_for_limits(job: NewJob) -> bool:
    return _special_fields(job) == _SPECIAL_DEFAULTS


def is_ordinary_success(change: Change) -> bool:
    """Whether a change is a holder's report that its job succeeded, with nothing beside it but a result."""
    if type(change) is OrdinarySuccess:
        return True
    return _fixed_values(change) == _FIXED and type(change.guard) is HoldGuard and not change.guard.ended


def are_ordinary_successes(changes: Sequence[Change]) -> bool:
    """The same for many changes, in a fraction of the time."""
    if set(map(type, changes)) == _ORDINARY:
        return True
    return list(map(_fixed_values, changes)).count(_FIXED) == len(changes) and all(
        type(change.guard) is HoldGuard and not change.guard.ended for change in changes
    )


# Fast paths write these fields of a new job. Every other field must have its default, also one that is added later.
OF_EVERY_JOB = frozenset(
    """
    id task payload queue priority delay at max_attempts timeout lease backoff retention dead_retention
    """.split()  # noqa: SIM905
)
_SPECIAL = {name: value for name, value in defaults_of(NewJob).items() if name not in {*OF_EVERY_JOB, "limits"}}
_special_fields: Callable[[NewJob], tuple[Any, ...]] = attrgetter(*_SPECIAL)
_SPECIAL_DEFAULTS = tuple(_SPECIAL.values())

# Fast paths write these fields of a success. Every other field must have the default of `OrdinarySuccess`.
OF_EVERY_SUCCESS = frozenset(("id", "guard", "failures", "result", "keep", "started_at"))
_FIXED_FIELDS = {name: value for name, value in defaults_of(OrdinarySuccess).items() if name not in OF_EVERY_SUCCESS}
_fixed_values: Callable[[Change], tuple[Any, ...]] = attrgetter(*_FIXED_FIELDS)
_FIXED = tuple(_FIXED_FIELDS.values())
_ORDINARY = {OrdinarySuccess}


def expand_records(one: Record, shorts: Sequence[str], payloads: Sequence[str]) -> list[Record]:
    """Records like this one that differ in their creation time, id and payload. A short is the time and the id: "123
    01a1…"."""
    like = one.__copy__()  # type: ignore[attr-defined]
    another: Callable[[], Record] = like.__copy__
    last = ""
    records = []
    for short, payload in zip(shorts, payloads, strict=True):
        at, _, id = short.partition(" ")
        if at != last:  # jobs of one list have the same creation time
            like.created_at = like.run_at = like.rank = int(at)
            last = at
        record = another()
        record.id, record.payload = id, payload
        records.append(record)
    return records
