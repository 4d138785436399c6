"""Placing jobs that a caller's own transaction has put on record: what an enqueue of ours would have done at once.

There, nothing that is on record may be changed or waited for. So jobs of fair queues come without a share, and those under
limits without a gate; and jobs that wait for others do not know how many of those there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.record import NewJob

from ..connection.writer import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.records import WHOLE, Many, json_text, lists_of
from .enqueue import special_queues
from .fair_ranks import assign_shares

_sql = load("admit", whole=WHOLE)
_RANK = Many(_sql["rank"], 2, (100, 10, 1))


def place(work: Work, ids: Sequence[str], now: int) -> None:
    """Give these jobs their place, in their order; one that has it already keeps it."""
    if not ids:
        return
    text = json_text(ids)
    rows = {row[0]: row for row in lists_of(work.connection.value(_sql["unplaced"], (text,)))}
    # a rank that is not the run_at is a share already
    unranked = [_as_new(*row[:5]) for id in dict.fromkeys(ids) if (row := rows.get(id)) and row[4] == row[5]]
    _RANK.run(work.connection, list(assign_shares(work, unranked, special_queues(work.connection), now).items()))
    work.connection.change(_sql["count"], (text,))
    edges.let_go(work, ids, now)
    register_gates(work, ids)
    work.ready |= {row[1] for row in rows.values()}


def _as_new(id: str, queue: str, priority: int, tenant: str | None, run_at: int) -> NewJob:
    """The job as far as shares look at it."""
    nothing = {"task": "", "payload": "", "backoff": "", "retention": "", "dead_retention": ""}
    return NewJob(id=id, queue=queue, priority=priority, tenant=tenant, at=run_at, **nothing)  # type: ignore[arg-type]
