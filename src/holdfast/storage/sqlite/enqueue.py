"""Putting jobs on record.

Plain jobs (no unique key, no bounded queue) are inserted at once; an id that is on record already conflicts and is
left alone. The others are planned first, one by one in Python under the write lock, and then inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from holdfast.job import ROW_VERSION, NewJob
from holdfast.storage.contract import Full, Placed, QueueSettings
from holdfast.storage.plain import is_plain
from holdfast.storage.rules import key_ends, key_name, plan

from .database import Work
from .queries import load
from .rows import Many, json_text, lists_of

_sql = load("enqueue", row_version=str(ROW_VERSION))
_PLAIN = Many(_sql["insert_plain"], 5, (250, 100, 40, 15, 5, 2, 1), padded=True)
_FULL = Many(_sql["insert_full"], 28, (100, 20, 5, 1))
_KEYS = Many(_sql["insert_keys"], 3, (100, 10, 1))
_HELD_KEYS = Many(_sql["held_keys"], 1)
_KEPT_KEYS = Many(_sql["kept_keys"], 1)

MOST_KINDS = 8  # of jobs in a list that go in by kind
Kind = tuple[str, str, int | None, int | None, int, str, str, str]  # task, queue and the options of a job


def enqueue(work: Work, jobs: Sequence[NewJob], now: int) -> list[Placed] | Full:
    """Put the jobs on record. Full is an answer, because nothing has been written when it is found."""
    bounds = {
        row[0]: QueueSettings(row[0], False, *row[1:]) for row in lists_of(work.connection.value(_sql["bounded"]))
    }
    if any(job.unique_key is not None or job.queue in bounds for job in jobs):
        try:
            answers, fresh = _planned(work, jobs, bounds, now)
        except Full as full:
            return full
        _insert_keys(work, fresh, now)
        _insert(work, fresh, now)
        return answers
    _insert(work, jobs, now)
    return [Placed(job.id) for job in jobs]


def place_of(job: NewJob, now: int) -> tuple[str, int]:
    """The state of a new job, and when it is to run."""
    run_at = now + job.delay if job.at is None else job.at
    return "blocked" if job.waits > 0 else "scheduled" if run_at > now else "ready", run_at


def _planned(
    work: Work, jobs: Sequence[NewJob], bounds: Mapping[str, QueueSettings], now: int
) -> tuple[list[Placed], list[NewJob]]:
    """What becomes of each job, given what stands in its way, and those that are to be stored."""
    connection = work.connection
    known = set(lists_of(connection.value(_sql["known"], (json_text([job.id for job in jobs]),))))
    names = {name for job in jobs if (name := key_name(job)) is not None}
    held = [(key,) for apart, key in names if not apart]
    kept = [(key,) for apart, key in names if apart]
    owners = {(False, key): owner for key, owner in _HELD_KEYS.rows(connection, held)}
    owners |= {(True, key): owner for key, owner in _KEPT_KEYS.rows(connection, kept, now)}
    depth = cache(lambda queue: connection.value(_sql["depth"], (queue, bounds[queue].max_depth)))
    return plan(jobs, known, owners.get, bounds.get, depth)


def _insert_keys(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    keys = [(job.unique_key, job.id, key_ends(job, now)) for job in jobs if (name := key_name(job)) and name[0]]
    _KEYS.run(work.connection, keys, now)


def _insert(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    """Plain jobs go in by kind, because those of a list are mostly of one; where the kinds are many, as the others do."""
    plain: dict[Kind, list[NewJob]] = {}
    full: list[NewJob] = []
    last: Kind | None = None
    alike = full
    for job in jobs:
        if not is_plain(job):
            full.append(job)
            continue
        kind = (
            job.task, job.queue, job.max_attempts, job.timeout, job.lease, job.backoff, job.retention, job.dead_retention,
        )  # fmt: skip
        if kind != last:
            last, alike = kind, plain.setdefault(kind, [])
        alike.append(job)
    if len(plain) > MOST_KINDS:
        plain, full = {}, list(jobs)
    for kind, alike in plain.items():
        rows = [(job.id, job.payload, *_place(work, job, now)) for job in alike]
        _PLAIN.run(work.connection, rows, *kind, now)
    _FULL.run(work.connection, [_whole(work, job, now) for job in full], now)


def _place(work: Work, job: NewJob, now: int) -> tuple[str, int, int]:
    state, run_at = place_of(job, now)
    if state == "ready":
        work.ready.add(job.queue)
    return state, job.priority, run_at


def _whole(work: Work, job: NewJob, now: int) -> tuple[Any, ...]:
    options = (job.max_attempts, job.timeout, job.lease, job.backoff, job.retention, job.dead_retention)
    state, priority, run_at = _place(work, job, now)
    return (job.id, job.task, job.queue, state, priority, run_at, job.payload, *options, *rest_of(job, now))


def rest_of(job: NewJob, now: int) -> tuple[Any, ...]:
    """The fields that a plain job does not have."""
    name = key_name(job)
    return (
        None if job.expires is None else now + job.expires,
        job.key,
        job.tenant,
        job.routing_key,
        job.tags,
        job.meta,
        job.unique_key,
        job.unique_scope,
        int(name is not None and not name[0]),
        job.chain_id,
        job.after,
        job.run_when,
        job.waits,
        job.limits,
        job.min_version,
    )
