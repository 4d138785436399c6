"""Putting jobs on record.

Plain jobs (no unique key, no parents, no queue with bounds or shares) are inserted at once; an id that is on record already
conflicts and is left alone. The others are planned first, one by one in Python under the write lock, and then inserted.

Jobs that differ in nothing but their payloads, as those of a list mostly do, go in as one text. It is made in the loop, so
that the writer's thread has little to do but to wait for SQLite, which needs no interpreter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from perdure.core.record import ROW_VERSION, NewJob, Record, UniformJobs
from perdure.storage.contract import EnqueueResult, MissingParent, QueueAtCapacity, QueueSettings
from perdure.storage.rules.fast_path import ids_of, is_ordinary_but_for_limits, kinds_of
from perdure.storage.rules.records import (
    due_time,
    initial_state,
    key_ends,
    key_name,
    parents_of,
    plan,
    refuse_missing_parents,
)

from . import edges
from .driver import Connection
from .fair_ranks import shares
from .limit_gates import register_gates
from .queries import load
from .records import POLICY, Many, json_text, lists_of, stands
from .writer import Work

_sql = load("enqueue", row_version=str(ROW_VERSION))
_FULL = Many(_sql["insert_full"], 16, (100, 20, 5, 1))
_BODIES = Many(_sql["bodies_full"], 13, (100, 20, 5, 1))
_KEYS = Many(_sql["insert_keys"], 3, (100, 10, 1))
_HELD_KEYS = Many(_sql["held_keys"], 1)
_KEPT_KEYS = Many(_sql["kept_keys"], 1)
_POLICIES = Many(_sql["insert_policies"], 1 + len(POLICY), (20, 4, 1))

Policy = tuple[int | None, int | None, str, str, str]  # in the order of POLICY
MOST_KINDS = 8  # of jobs in a list that go in by kind
# task, queue, priority, policy, lease, limits, and when it is to run: after a while, or at a time
Kind = tuple[str, str, int, Policy, int, str | None, int, int | None]


# ---- policies --------------------------------------------------------------------------------------
# Nearly all jobs of a task have the same policy. It is stored once, not with every job, so that the row of a job is short:
# SQLite writes it whole at every move. The number of a policy is a hash of its values. So every process knows the number
# without reading, also inside a caller's transaction, and one number never means two policies, whatever is rolled back or
# restored.
def policy_of(job: NewJob | Record) -> Policy:
    return job.max_attempts, job.timeout, job.backoff, job.retention, job.dead_retention


@lru_cache(1024)
def number_of(policy: Policy) -> int:
    """The number under which a policy is kept: 63 bits of its hash."""
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(policy)).digest()[:8], "big") >> 1


def keep(connection: Connection, policies: Iterable[Policy]) -> None:
    """Put policies on record, before the jobs that have them."""
    rows: list[tuple[Any, ...]] = [(number_of(policy), *policy) for policy in dict.fromkeys(policies)]
    _POLICIES.run(connection, rows)


# ---- new jobs --------------------------------------------------------------------------------------
class UniformGroup(NamedTuple):
    """Jobs that differ in nothing but their payloads, which are a JSON object by their ids."""

    kind: Kind
    payloads: str
    many: int
    first: str  # the id of the best of them


class PreparedJobs:
    """New jobs on their way to the writer."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.all = jobs
        kinds = kinds_of(jobs)
        self.plain = not any(job.unique_key is not None or job.after is not None for job in kinds)
        self.queues = {job.queue for job in kinds}
        self.alike, self.others = _by_kind(jobs) if self.plain else ([], jobs)

    def placed(self) -> list[EnqueueResult]:
        """What becomes of jobs that nothing stands in the way of."""
        return [EnqueueResult(id) for id in ids_of(self.all)]


def _by_kind(jobs: Sequence[NewJob]) -> tuple[list[UniformGroup], Sequence[NewJob]]:
    if isinstance(jobs, UniformJobs) and is_ordinary_but_for_limits(jobs.template):
        payloads = dict(zip(jobs.ids, jobs.payloads, strict=True))
        return [UniformGroup(_kind(jobs.template), json_text(payloads), len(payloads), min(jobs.ids))], []
    kinds: dict[Kind, dict[str, str]] = {}
    others: list[NewJob] = []
    last: Kind | None = None
    alike: dict[str, str] = {}
    for job in jobs:
        if not is_ordinary_but_for_limits(job):
            others.append(job)
            continue
        kind = _kind(job)
        if kind != last:
            last, alike = kind, kinds.setdefault(kind, {})
        alike[job.id] = job.payload
    if len(kinds) > MOST_KINDS:
        return [], jobs
    return [UniformGroup(kind, json_text(told), len(told), min(told)) for kind, told in kinds.items()], others


def _kind(job: NewJob) -> Kind:
    return (
        job.task, job.queue, job.priority, policy_of(job), job.lease, job.limits, job.delay, job.at,
    )  # fmt: skip


def enqueue(
    work: Work, jobs: PreparedJobs, now: int, *, bounded: bool = True
) -> list[EnqueueResult] | QueueAtCapacity | MissingParent | None:
    """Put the jobs on record; what follows from their edges is left to `resolve_edges`. A refusal is an answer, because
    nothing has been written when it is found. None: nothing stood in the way of any."""
    policies = {group.kind[3] for group in jobs.alike}
    settings, known, in_step = _look(work.connection, next(iter(policies)) if len(policies) == 1 else None)
    if not in_step:
        work.connection.change(_sql["remove_bodies_ahead"])
    if jobs.plain and jobs.queues.isdisjoint(settings):
        if not known:
            keep(work.connection, policies)
        _insert_alike(work, jobs.alike, now, in_step=in_step)
        _insert(work, jobs.others, {}, now)
        return None
    try:
        answers, fresh = _planned(work, jobs.all, settings, now, bounded=bounded)
        check_parents(work.connection, fresh)
    except (QueueAtCapacity, MissingParent) as refusal:
        return refusal
    _insert_keys(work, fresh, now)
    _insert(work, fresh, shares(work, fresh, settings, now), now)
    edges.add(work, fresh)
    return answers


def special_queues(connection: Connection) -> dict[str, QueueSettings]:
    """The queues that hold only so many jobs, and those that are fair."""
    return _look(connection, None)[0]


def _look(connection: Connection, policy: Policy | None) -> tuple[dict[str, QueueSettings], bool, bool]:
    """Those queues; whether the policy is on record, instead of a statement that would change nothing; and whether new rows
    of jobs and of bodies get the same numbers."""
    number = None if policy is None else number_of(policy)
    rows, known, in_step = connection.rows(_sql["special_queues"], (number,))[0]
    settings = {
        name: QueueSettings(name, False, max_depth, on_full, drop_below, bool(fair), weights)
        for name, max_depth, on_full, drop_below, fair, weights in lists_of(rows)
    }
    return settings, bool(known), bool(in_step)


def check_parents(connection: Connection, jobs: Sequence[NewJob]) -> None:
    """`MissingParent`, if one of these would wait for a job that is not on record."""
    parents = sorted({parent for job in jobs for parent in parents_of(job.after)})
    if parents:
        refuse_missing_parents(jobs, set(lists_of(connection.value(_sql["followable"], (json_text(parents),)))))


def place_of(job: NewJob, now: int) -> tuple[str, int]:
    """The state of a new job, and when it is to run."""
    return initial_state(job, now).value, due_time(job, now)


def _planned(
    work: Work, jobs: Sequence[NewJob], settings: Mapping[str, QueueSettings], now: int, *, bounded: bool
) -> tuple[list[EnqueueResult], list[NewJob]]:
    """What becomes of each job, given what stands in its way, and those that are to be stored."""
    connection = work.connection
    known = set(_known(connection, [job.id for job in jobs]))
    names = {name for job in jobs if (name := key_name(job)) is not None}
    held = [(key,) for apart, key in names if not apart]
    kept = [(key,) for apart, key in names if apart]
    owners = {(False, key): owner for key, owner in _HELD_KEYS.rows(connection, held)}
    owners |= {(True, key): owner for key, owner in _KEPT_KEYS.rows(connection, kept, now)}
    depth = cache(lambda queue: connection.value(_sql["depth"], {"queue": queue, "most": settings[queue].max_depth}))
    return plan(jobs, known, owners.get, settings.get, depth, bounded=bounded)


def _known(connection: Connection, ids: Sequence[str]) -> list[str]:
    return lists_of(connection.value(_sql["known"], (json_text(ids),)))


def _insert_keys(work: Work, jobs: Sequence[NewJob], now: int) -> None:
    keys = [(job.unique_key, job.id, key_ends(job, now)) for job in jobs if (name := key_name(job)) and name[0]]
    _KEYS.run(work.connection, keys, now)


def _insert_alike(work: Work, groups: Sequence[UniformGroup], now: int, *, in_step: bool) -> None:
    parked = []
    for kind, payloads, many, first in groups:
        task, queue, priority, policy, lease, limits, delay, at = kind
        run_at = now + delay if at is None else at
        ready, limited = run_at <= now, limits is not None
        state = "ready" if ready else "scheduled"
        in_lane, apart = stands(state, parked=limited, suspect=False)
        rows = {
            "payloads": payloads, "task": task, "queue": queue, "priority": priority, "lease": lease, "limits": limits,
            "state": state, "in_lane": in_lane, "apart": apart, "run_at": run_at, "parked": ready and limited, "now": now,
        }  # fmt: skip
        all_new = work.connection.change(_sql["insert_alike"], rows) == many
        bodies = _sql["bodies_alike" if all_new and in_step else "bodies_by_id"]
        work.connection.change(bodies, {"payloads": payloads, "policy": number_of(policy)})
        work.ready.add(queue)
        if ready and limited:  # they wait at one gate, which asks after the best of them alone
            parked.append(first)
    register_gates(work, parked)


def _insert(work: Work, jobs: Sequence[NewJob], shares: Mapping[str, int], now: int) -> None:
    if jobs:
        keep(work.connection, map(policy_of, jobs))
        _FULL.run(work.connection, [_row(work, job, shares.get(job.id), now) for job in jobs], now)
        _BODIES.run(work.connection, [_body(job) for job in jobs])
        register_gates(work, [job.id for job in jobs if job.limits is not None])


def _row(work: Work, job: NewJob, share: int | None, now: int) -> tuple[Any, ...]:
    state, run_at = place_of(job, now)
    if state != "blocked":
        work.ready.add(job.queue)
    parked = state == "ready" and job.limits is not None
    rank = run_at if share is None else share
    place = (state, *stands(state, parked=parked, suspect=False), job.priority, rank, run_at, parked)
    return (job.id, job.task, job.queue, *place, job.lease, *rest_of(job, now))


def rest_of(job: NewJob, now: int) -> tuple[Any, ...]:
    """The fields of its row that a plain job does not have."""
    name = key_name(job)
    expires_at = None if job.expires is None else now + job.expires
    holds_key = int(name is not None and not name[0])
    return expires_at, job.routing_key, job.unique_key, holds_key, job.limits


def _body(job: NewJob) -> tuple[Any, ...]:
    return (job.id, job.payload, number_of(policy_of(job)), *rest_of_body(job))


def rest_of_body(job: NewJob) -> tuple[Any, ...]:
    """The fields of its body that a plain job does not have."""
    about = (job.key, job.tenant, job.tags, job.meta, job.unique_scope, job.chain_id)
    return (*about, job.after, job.run_when, job.waits, job.min_version)
