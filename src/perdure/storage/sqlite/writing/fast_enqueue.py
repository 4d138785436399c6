"""Fast path: inserts jobs that differ only in their payloads by one statement per table, with all payloads in one JSON text.

The event loop builds the text, because the writer's thread should do little but wait for SQLite, which needs no interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.record import ROW_VERSION, NewJob, UniformJobs
from perdure.storage.rules import fast_path
from perdure.storage.rules.fast_path import is_ordinary_but_for_limits

from ..connection.work import Work
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.records import json_text, position_of
from .policies import Policy, number_of, policy_of

MAX_GROUPS = 8  # a list with more kinds of jobs is inserted job by job

_sql = load("fast_enqueue", row_version=str(ROW_VERSION))

# task, queue, priority, policy, lease, limits, delay, and the time at which it is to run
Kind = tuple[str, str, int, Policy, int, str | None, int, int | None]


class UniformGroup(NamedTuple):
    """Jobs of one kind. `payloads` is a JSON object by their ids."""

    kind: Kind
    payloads: str
    first: str  # the id of the job that a claim would take first

    @property
    def policy(self) -> Policy:
        return self.kind[3]


def try_fast_groups(jobs: Sequence[NewJob]) -> tuple[list[UniformGroup], Sequence[NewJob]] | None:
    """The jobs in groups of one kind, and the jobs that fit no group. None if there would be too many groups."""
    if not fast_path.enabled():
        return None
    if isinstance(jobs, UniformJobs) and is_ordinary_but_for_limits(jobs.template):
        payloads = dict(zip(jobs.ids, jobs.payloads, strict=True))
        return [UniformGroup(_kind_of(jobs.template), json_text(payloads), min(jobs.ids))], []
    kinds: dict[Kind, dict[str, str]] = {}
    others: list[NewJob] = []
    last: Kind | None = None
    group: dict[str, str] = {}
    for job in jobs:
        if not is_ordinary_but_for_limits(job):
            others.append(job)
            continue
        kind = _kind_of(job)
        if kind != last:
            last, group = kind, kinds.setdefault(kind, {})
        group[job.id] = job.payload
    if len(kinds) > MAX_GROUPS:
        return None
    return [UniformGroup(kind, json_text(payloads), min(payloads)) for kind, payloads in kinds.items()], others


def _kind_of(job: NewJob) -> Kind:
    return job.task, job.queue, job.priority, policy_of(job), job.lease, job.limits, job.delay, job.at


def insert_groups(work: Work, groups: Sequence[UniformGroup], now: int) -> None:
    """Insert the jobs that are not stored yet. Their policies are stored."""
    parked = []
    for kind, payloads, first in groups:
        task, queue, priority, policy, lease, limits, delay, at = kind
        run_at = now + delay if at is None else at
        ready, limited = run_at <= now, limits is not None
        state = "ready" if ready else "scheduled"
        in_lane, index_state = position_of(state, parked=limited, suspect=False)
        values = {
            "payloads": payloads, "task": task, "queue": queue, "priority": priority, "lease": lease, "limits": limits,
            "state": state, "in_lane": in_lane, "index_state": index_state, "run_at": run_at,
            "parked": ready and limited, "now": now,
        }  # fmt: skip
        work.connection.change(_sql["insert_jobs"], values)
        work.connection.change(_sql["insert_bodies"], {"payloads": payloads, "policy": number_of(policy)})
        work.ready.add(queue)
        if ready and limited:  # all of them wait at one gate, which needs to know its best job only
            parked.append(first)
    register_gates(work, parked)
