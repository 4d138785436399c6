"""Enqueues jobs: decides which of them are stored, and inserts their rows.

Jobs without a unique key, without parents, and without a queue that is bounded or fair are inserted at once; an id that is
stored already conflicts and is left as it is. All other jobs are planned one by one in Python under the write lock first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from perdure.core.record import NewJob
from perdure.storage.contract import EnqueueResult, MissingParent, QueueAtCapacity, QueueSettings
from perdure.storage.rules.fast_path import ids_of, kinds_of
from perdure.storage.rules.records import (
    due_time,
    initial_state,
    key_ends,
    key_name,
    parents_of,
    plan,
    refuse_missing_parents,
)

from ..connection.driver import Connection
from ..connection.work import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.records import Many, json_text, lists_of, position_of
from .fair_ranks import assign_shares
from .fast_enqueue import insert_groups, try_fast_groups
from .policies import Policy, number_of, policy_of, store_policies

_sql = load("enqueue")
_JOBS = Many(_sql["insert_jobs"], 16, (100, 20, 5, 1))
_BODIES = Many(_sql["insert_bodies"], 13, (100, 20, 5, 1))
_KEYS = Many(_sql["insert_keys"], 3, (100, 10, 1))
_HELD_KEYS = Many(_sql["held_keys"], 1)
_KEPT_KEYS = Many(_sql["kept_keys"], 1)


class PreparedJobs:
    """New jobs, prepared by the event loop for the writer's thread."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.all = jobs
        kinds = kinds_of(jobs)
        self.needs_plan = any(job.unique_key is not None or job.after is not None for job in kinds)
        self.queues = {job.queue for job in kinds}
        groups = None if self.needs_plan else try_fast_groups(jobs)
        self.groups, self.others = groups or ([], jobs)

    def results(self) -> list[EnqueueResult]:
        """The results of an enqueue that stored every job."""
        return [EnqueueResult(id) for id in ids_of(self.all)]


def enqueue(
    work: Work, jobs: PreparedJobs, now: int, *, bounded: bool = True
) -> list[EnqueueResult] | QueueAtCapacity | MissingParent | None:
    """Store the jobs; `resolve_edges` deals with their edges. A refusal is returned, not raised, because nothing has been
    written when it is found. None: every job was stored."""
    policies = {group.policy for group in jobs.groups}
    settings, policy_known, has_stray_bodies = _read_settings(
        work.connection, next(iter(policies)) if len(policies) == 1 else None
    )
    if has_stray_bodies:
        work.connection.change(_sql["remove_stray_bodies"])
    if not jobs.needs_plan and jobs.queues.isdisjoint(settings):
        if not policy_known:
            store_policies(work.connection, policies)
        insert_groups(work, jobs.groups, now)
        _insert(work, jobs.others, {}, now)
        return None
    try:
        results, fresh = _plan(work, jobs.all, settings, now, bounded=bounded)
        check_parents(work.connection, fresh)
    except (QueueAtCapacity, MissingParent) as refusal:
        return refusal
    _insert_keys(work, fresh, now)
    _insert(work, fresh, assign_shares(work, fresh, settings, now), now)
    edges.add(work, fresh)
    return results


def special_queues(connection: Connection) -> dict[str, QueueSettings]:
    """The queues that are bounded or fair."""
    return _read_settings(connection, None)[0]


def _read_settings(connection: Connection, policy: Policy | None) -> tuple[dict[str, QueueSettings], bool, bool]:
    """The queues that are bounded or fair; whether the policy is stored; and whether there are bodies without a job
    whose number a new job would get."""
    number = None if policy is None else number_of(policy)
    rows, policy_known, has_stray_bodies = connection.rows(_sql["special_queues"], (number,))[0]
    settings = {
        name: QueueSettings(name, False, max_depth, on_full, drop_below, bool(fair), weights)
        for name, max_depth, on_full, drop_below, fair, weights in lists_of(rows)
    }
    return settings, bool(policy_known), bool(has_stray_bodies)


def check_parents(connection: Connection, jobs: Sequence[NewJob]) -> None:
    """`MissingParent` if one of these jobs would wait for a job that is not stored."""
    parents = sorted({parent for job in jobs for parent in parents_of(job.after)})
    if parents:
        refuse_missing_parents(jobs, set(lists_of(connection.value(_sql["followable"], (json_text(parents),)))))


def state_of(job: NewJob, now: int) -> tuple[str, int]:
    """The state of a new job, and when it is to run."""
    return initial_state(job, now).value, due_time(job, now)


def _plan(
    work: Work, jobs: Sequence[NewJob], settings: Mapping[str, QueueSettings], now: int, *, bounded: bool
) -> tuple[list[EnqueueResult], list[NewJob]]:
    """The result for each job, and the jobs that are to be stored."""
    connection = work.connection
    known = set(lists_of(connection.value(_sql["known"], (json_text([job.id for job in jobs]),))))
    names = {name for job in jobs if (name := key_name(job)) is not None}
    held = [(key,) for is_kept, key in names if not is_kept]
    kept = [(key,) for is_kept, key in names if is_kept]
    owners = {(False, key): owner for key, owner in _HELD_KEYS.rows(connection, held)}
    owners |= {(True, key): owner for key, owner in _KEPT_KEYS.rows(connection, kept, now)}
    depth = cache(lambda queue: connection.value(_sql["depth"], {"queue": queue, "most": settings[queue].max_depth}))
    return plan(jobs, known, owners.get, settings.get, depth, bounded=bounded)


def _insert_keys(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    keys = [(job.unique_key, job.id, key_ends(job, now)) for job in jobs if (name := key_name(job)) and name[0]]
    _KEYS.run(work.connection, keys, now)


def _insert(work: Work, jobs: Sequence[NewJob], ranks: Mapping[str, int], now: int) -> None:
    """Insert jobs with any fields. `ranks`: those of jobs in fair queues."""
    if jobs:
        store_policies(work.connection, map(policy_of, jobs))
        _JOBS.run(work.connection, [_row_of(work, job, ranks.get(job.id), now) for job in jobs], now)
        _BODIES.run(work.connection, [_body_of(job) for job in jobs])
        register_gates(work, [job.id for job in jobs if job.limits is not None])


def _row_of(work: Work, job: NewJob, rank: int | None, now: int) -> tuple[Any, ...]:
    state, run_at = state_of(job, now)
    if state != "blocked":
        work.ready.add(job.queue)
    parked = state == "ready" and job.limits is not None
    position = position_of(state, parked=parked, suspect=False)
    order = (job.priority, run_at if rank is None else rank, run_at, parked)
    return (job.id, job.task, job.queue, state, *position, *order, job.lease, *rare_columns(job, now))


def rare_columns(job: NewJob, now: int) -> tuple[Any, ...]:
    """The columns of a job's row that an ordinary job does not set."""
    name = key_name(job)
    expires_at = None if job.expires is None else now + job.expires
    holds_key = int(name is not None and not name[0])
    return expires_at, job.routing_key, job.unique_key, holds_key, job.limits


def _body_of(job: NewJob) -> tuple[Any, ...]:
    return (job.id, job.payload, number_of(policy_of(job)), *rare_body_columns(job))


def rare_body_columns(job: NewJob) -> tuple[Any, ...]:
    """The columns of a job's body that an ordinary job does not set."""
    about = (job.key, job.tenant, job.tags, job.meta, job.unique_scope, job.chain_id)
    return (*about, job.after, job.run_when, job.waits, job.min_version)
