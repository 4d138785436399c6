"""Putting jobs on record.

Plain jobs (no unique key, no bounded queue) are inserted at once; an id that is on record already conflicts and is
left alone. The others are planned first, one by one in Python under the write lock, and then inserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.job import ROW_VERSION, NewJob
from holdfast.storage.contract import Full, Placed

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
KeyName = tuple[bool, str]  # kept apart from the rows (scopes any and window)?, unique_key


class Bound(NamedTuple):
    max_depth: int
    on_full: str
    drop_below: int | None


def enqueue(work: Work, jobs: Sequence[NewJob], now: int) -> list[Placed] | Full:
    """Put the jobs on record. Full is an answer, because nothing has been written when it is found."""
    bounds = {name: Bound(*bound) for name, *bound in lists_of(work.connection.value(_sql["bounded"]))}
    if any(job.unique_key is not None or job.queue in bounds for job in jobs):
        plan = _Plan(work, jobs, bounds, now)
        try:
            answers = plan.made()
        except Full as full:
            return full
        fresh: Sequence[NewJob] = list(plan.fresh.values())
        _insert_keys(work, fresh, now)
    else:
        answers, fresh = [Placed(job.id) for job in jobs], jobs
    _insert(work, fresh, now)
    return answers


def place_of(job: NewJob, now: int) -> tuple[str, int]:
    """The state of a new job, and when it is to run."""
    run_at = now + job.delay if job.at is None else job.at
    return "blocked" if job.waits > 0 else "scheduled" if run_at > now else "ready", run_at


def key_name(job: NewJob) -> KeyName | None:
    if job.unique_key is None or job.unique_scope is None:
        return None
    return job.unique_scope in ("any", "window"), job.unique_key


class _Plan:
    """What becomes of each job, in the order of the list."""

    def __init__(self, work: Work, jobs: Sequence[NewJob], bounds: dict[str, Bound], now: int) -> None:
        self._work = work
        self._jobs = jobs
        self._bounds = bounds
        self._depth: Counter[str] = Counter()
        self.fresh: dict[str, NewJob] = {}
        connection = work.connection
        self._known = set(lists_of(connection.value(_sql["known"], (json_text([job.id for job in jobs]),))))
        self._owners: dict[KeyName, str] = {}
        names = {name for job in jobs if (name := key_name(job)) is not None}
        held = [(key,) for apart, key in names if not apart]
        kept = [(key,) for apart, key in names if apart]
        self._owners |= {(False, key): owner for key, owner in _HELD_KEYS.rows(connection, held)}
        self._owners |= {(True, key): owner for key, owner in _KEPT_KEYS.rows(connection, kept, now)}

    def made(self) -> list[Placed]:
        return [self._placed(job) for job in self._jobs]

    def _placed(self, job: NewJob) -> Placed:
        if job.id in self._known or job.id in self.fresh:
            return Placed(job.id)
        name = key_name(job)
        owner = None if name is None else self._owners.get(name)
        if owner is not None:
            return Placed(owner, duplicate=owner != job.id)
        if self._dropped(job):
            return Placed(job.id, dropped=True)
        self.fresh[job.id] = job
        self._depth[job.queue] += 1
        if name is not None:
            self._owners[name] = job.id
        return Placed(job.id)

    def _dropped(self, job: NewJob) -> bool:
        bound = self._bounds.get(job.queue)
        if bound is None:
            return False
        if job.queue not in self._depth:
            self._depth[job.queue] = self._work.connection.value(_sql["depth"], (job.queue, bound.max_depth))
        if self._depth[job.queue] < bound.max_depth:
            return False
        if bound.on_full == "drop" and (bound.drop_below is None or job.priority < bound.drop_below):
            return True
        raise Full(job.queue, bound.max_depth, waits=bound.on_full != "reject")


def _insert_keys(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    keys = [(job.unique_key, job.id, key_ends(job, now)) for job in jobs if (name := key_name(job)) and name[0]]
    _KEYS.run(work.connection, keys, now)


def key_ends(job: NewJob, now: int) -> int | None:
    return now + (job.unique_window or 0) if job.unique_scope == "window" else None


def _insert(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    """Plain jobs go in by kind, because those of a list are mostly of one; where the kinds are many, as the others do."""
    plain: dict[Kind, list[NewJob]] = {}
    full: list[NewJob] = []
    last: Kind | None = None
    alike = full
    for job in jobs:
        if not _is_plain(job):
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


def _is_plain(job: NewJob) -> bool:
    return (
        job.key is job.tenant is job.routing_key is job.tags is job.meta is job.unique_key is job.chain_id is None
        and job.after is job.limits is job.unique_scope is None
        and job.expires is None
        and job.waits == 0
        and job.run_when == "succeeded"
        and job.min_version == ROW_VERSION
    )


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
