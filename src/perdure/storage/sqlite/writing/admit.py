"""Admits jobs that a caller's own transaction has stored: does what an enqueue of ours does at once.

A caller's transaction must not change stored rows or wait for them. So its jobs in fair queues have no fair rank, its jobs
under limits have no gate, and its jobs with parents do not know how many of those they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.record import NewJob

from ..connection.work import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.records import WHOLE, Many, json_text, lists_of
from .enqueue import special_queues
from .fair_ranks import assign_shares

_sql = load("admit", whole=WHOLE)
_RANK = Many(_sql["rank"], 2, (100, 10, 1))


def admit(work: Work, ids: Sequence[str], now: int) -> None:
    """Admit these jobs in their order; one that was admitted before stays as it is."""
    if not ids:
        return
    text = json_text(ids)
    rows = {row[0]: row for row in lists_of(work.connection.value(_sql["waiting"], (text,)))}
    # a rank that is not the run_at is a fair rank already
    unranked = [_as_new(*row[:5]) for id in dict.fromkeys(ids) if (row := rows.get(id)) and row[4] == row[5]]
    _RANK.run(work.connection, list(assign_shares(work, unranked, special_queues(work.connection), now).items()))
    work.connection.change(_sql["count"], (text,))
    edges.release(work, ids, now)
    register_gates(work, ids)
    work.ready |= {row[1] for row in rows.values()}


def _as_new(id: str, queue: str, priority: int, tenant: str | None, run_at: int) -> NewJob:
    """The fields of a job that decide its fair rank."""
    nothing = {"task": "", "payload": "", "backoff": "", "retention": "", "dead_retention": ""}
    return NewJob(id=id, queue=queue, priority=priority, tenant=tenant, at=run_at, **nothing)  # type: ignore[arg-type]
