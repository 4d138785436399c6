"""Makes the statements of an enqueue in the caller's own transaction: only INSERT and SELECT, with one JSON text each.

What changes or depends on stored rows is left to `resolve_edges`: parents are not marked, and fair ranks are not assigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from perdure.core.record import NewJob
from perdure.storage.contract import CallerStatements
from perdure.storage.rules.records import key_ends, key_name

from ..queries import load
from ..reading.records import json_text
from .enqueue import rare_body_columns, rare_columns, state_of
from .policies import number_of, policy_of

FIELDS = tuple(
    """
    id task queue state priority run_at payload policy max_attempts timeout backoff retention dead_retention lease expires_at
    routing_key unique_key holds_key limits key tenant tags meta unique_scope chain_id after run_when waits min_version
    created_at key_ends
    """.split()  # noqa: SIM905
)
FAIR = "EXISTS (SELECT 1 FROM perdure_queues AS settings WHERE settings.name = {queue} AND settings.fair = 1)"
# texts that may hold a NUL character, which SQLite's JSON cuts off: a mark is sent instead
MARKED = ("key", "tenant", "routing_key", "unique_key")
NUL, MARK = "\x00", "\ue000perdure-nul\ue000"


def statements_for(jobs: Sequence[NewJob], now: int) -> CallerStatements:
    """The statements that store the jobs."""
    marked = any(NUL in text for job in jobs for name in MARKED if (text := getattr(job, name)) is not None)
    text = json_text([_values(job, now, marked) for job in jobs])
    statements = _statements(marked)
    names = ["policies", "insert", "bodies", "admit"]
    if any((name := key_name(job)) is not None and name[0] for job in jobs):
        names.insert(0, "take_keys")
    if any(job.after is not None for job in jobs):
        names += ["edges", "unresolved"]
    readback = (statements["readback"], text)
    return CallerStatements(tuple((statements[name], text) for name in names), readback, owners=readback)


@cache
def _statements(marked: bool) -> dict[str, str]:
    parts = {name: f"json_extract(job.value, '$[{index}]')" for index, name in enumerate(FIELDS)}
    if marked:
        parts |= {name: f"replace({parts[name]}, '{MARK}', char(0))" for name in MARKED}
    return load("caller_insert", fair=FAIR, **parts)


def _values(job: NewJob, now: int, marked: bool) -> list[object]:
    state, run_at = state_of(job, now)
    policy = policy_of(job)
    values: list[object] = [job.id, job.task, job.queue, state, job.priority, run_at, job.payload, number_of(policy)]
    values += [*policy, job.lease, *rare_columns(job, now), *rare_body_columns(job), now, key_ends(job, now)]
    if marked:
        for name in MARKED:
            index = FIELDS.index(name)
            values[index] = values[index] and str(values[index]).replace(NUL, MARK)
    return values
