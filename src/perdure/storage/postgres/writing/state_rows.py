"""Makes the state rows of jobs: those that wait and those that have ended, and which of them a change replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Change
from perdure.core.record import Record

from ..reading.records import digest, marked, route_of

WAITING = tuple(
    """
    rank run_at expires_at started_at accepted_stamp urgency min_version version attempt failures losses waits id parked
    suspect key_waits state queue task route held_key reason progress followed gate
    """.split()  # noqa: SIM905
)
OUTCOMES = tuple(
    """
    created_at finished_at prune_at keep_last run_at rank started_at accepted_stamp version attempt failures losses waits id
    hidden suspect task state result held_key reason progress followed next_id
    """.split()  # noqa: SIM905
)
TABLES = ("waiting", "holds", "outcomes")  # the order in which they are locked


class StateMoves:
    """The state rows that changes delete and insert, collected for a few statements."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.left: dict[str, set[str]] = {table: set() for table in TABLES}
        self.waiting: list[dict[str, Any]] = []
        self.outcomes: list[dict[str, Any]] = []
        self.ended_holds: set[str] = set()
        self.errors: dict[str, str] = {}
        self.freed: dict[str, str] = {}  # key, job
        self.unresolved: set[str] = set()
        self.parked: list[Record] = []
        self.released: list[Record] = []  # limited jobs, as they were held
        self.ready: set[str] = set()
        self.changed = False
        self.any = False

    def move(self, before: Record, after: Record, change: Change) -> None:
        self.any = True
        self.left["waiting" if before.state not in FINAL and before.stamp is None else table_of(before)].add(before.id)
        if before.stamp is not None and after.stamp is None:
            self.left["holds"].add(before.id)
            if before.limits is not None:
                self.released.append(before)
                self.ready.add(before.queue)
        elif before.stamp is not None:
            self.left["holds"].discard(before.id)
            self.ended_holds.add(before.id)
        if after.state in FINAL:
            self.outcomes.append(outcome_row(after))
            self.changed = True
            if after.followed:
                self.unresolved.add(after.id)
        else:
            self.waiting.append(waiting_row(after))
            if after.state is State.READY or after.state is State.SCHEDULED:
                self.ready.add(after.queue)
                self.parked += [after] if after.parked else []
        if change.errors is not None:
            self.errors[after.id] = change.errors
        if before.holds_key and not after.holds_key and before.unique_key is not None:
            self.freed[before.unique_key] = before.id


def table_of(record: Record) -> str:
    """The table of a job's state row."""
    if record.state in FINAL:
        return "outcomes"
    return "holds" if record.state is State.RUNNING else "waiting"


def waiting_row(record: Record) -> dict[str, Any]:
    """The state row of a job that waits."""
    row = _row(record, WAITING)
    row["urgency"] = -1 - record.priority
    row["route"] = route_of(record.routing_key)
    row["gate"] = None if record.limits is None else digest(record.limits)
    row["key_waits"] = record.unique_scope == "waiting"
    return row


def lane_of(record: Record) -> tuple[str, str, str, str]:
    """Where a job under limits is parked: gate, queue, task, route."""
    return digest(record.limits or ""), record.queue, record.task, route_of(record.routing_key)


def outcome_row(record: Record) -> dict[str, Any]:
    """The state row of a job that has ended."""
    row = _row(record, OUTCOMES)
    row["created_at"] = record.created_at if record.state is State.DEAD else None
    row["task"] = None if record.keep_last is None else record.task
    return row


def _row(record: Record, columns: Sequence[str]) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in columns}
    row["held_key"] = marked(record.unique_key) if record.holds_key else None
    row["reason"] = marked(record.reason)
    return row
