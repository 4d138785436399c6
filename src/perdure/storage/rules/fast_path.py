"""Decides which jobs and changes are ordinary, and whether stores may use their fast paths for them.

A fast path is a shorter way for the most frequent case, with the same result as the general way. PERDURE_FAST_PATHS=0
in the environment switches all of them off: tests and measurements run both ways.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter

from ...core.job import State
from ...core.lifecycle import Change, HoldGuard, KeyMove, OrdinarySuccess
from ...core.record import ROW_VERSION, NewJob, Record, UniformJobs

_ENABLED = os.environ.get("PERDURE_FAST_PATHS", "1") != "0"


def enabled() -> bool:
    """Whether fast paths may be used. Call it through its module, so that a test can patch it."""
    return _ENABLED


def kinds_of(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Jobs among which there is one of every kind that these are of."""
    return [jobs.template] if isinstance(jobs, UniformJobs) else jobs


def ids_of(jobs: Sequence[NewJob]) -> Sequence[str]:
    """Their ids; jobs that nobody has asked for yet are not made for that."""
    return jobs.ids if isinstance(jobs, UniformJobs) else [job.id for job in jobs]


def is_ordinary(job: NewJob) -> bool:
    """A new job that has only the fields that every job has."""
    return job.limits is None and is_ordinary_but_for_limits(job)


def is_ordinary_but_for_limits(job: NewJob) -> bool:
    return (
        job.key is job.tenant is job.routing_key is job.tags is job.meta is job.unique_key is job.chain_id is None
        and job.after is job.unique_scope is None
        and job.expires is None
        and job.waits == 0
        and job.run_when == "succeeded"
        and job.min_version == ROW_VERSION
    )


def is_ordinary_success(change: Change) -> bool:
    """A holder's word that its job succeeded, with nothing beside it but a result."""
    if type(change) is OrdinarySuccess:
        return True
    return _SAID(change) == _SUCCEEDED and type(change.guard) is HoldGuard and not change.guard.ended


def are_ordinary_successes(changes: Sequence[Change]) -> bool:
    """The same for many, in a fraction of the time."""
    if set(map(type, changes)) == _PLAIN:
        return True
    return list(map(_SAID, changes)).count(_SUCCEEDED) == len(changes) and all(
        type(change.guard) is HoldGuard and not change.guard.ended for change in changes
    )


_SAID = attrgetter(
    "state", "key", "keep_last", "at", "delay", "reason", "errors", "next_id",
    "adds", "hidden", "losses", "suspect", "keeps_hold",
)  # fmt: skip
_PLAIN = {OrdinarySuccess}
_SUCCEEDED = (State.SUCCEEDED, KeyMove.FREE, None, None, None, None, None, None, (), False, 0, False, False)


def expand_records(one: Record, shorts: Sequence[str], payloads: Sequence[str]) -> list[Record]:
    """Records like this one, made of what tells usual jobs apart: when each was made and its id ("123 01a1…"), and its
    payload."""
    like = one.__copy__()  # type: ignore[attr-defined]
    another: Callable[[], Record] = like.__copy__
    last = ""
    records = []
    for short, payload in zip(shorts, payloads, strict=True):
        at, _, id = short.partition(" ")
        if at != last:  # those of a list were made at the same instant
            like.created_at = like.run_at = like.rank = int(at)
            last = at
        record = another()
        record.id, record.payload = id, payload
        records.append(record)
    return records
