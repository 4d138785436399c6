"""Reads the jobs that a claim takes as they will be once claimed, and marks their rows as running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from perdure.core.record import Record
from perdure.storage.contract import Claim
from perdure.storage.rules.unreadable import LARGEST

from ..connection.driver import TOOBIG
from ..connection.work import Work
from ..queries import load
from ..reading.records import FIELDS, MAY_RUN, WHOLE, column_of, json_text, literal, records_of, value_of

# what a claim writes
_ONCE_CLAIMED = {
    "state": "'running'",
    "version": f"min(job.version, {LARGEST}) + 1",
    "attempt": f"min(job.attempt, {LARGEST}) + 1",
    "started_at": "NULL",
    "finished_at": "NULL",
    "prune_at": "NULL",
    "keep_last": "NULL",
    "stamp": ":stamp",
    "leased_by": ":worker",
    "leased_until": f"min(job.lease, {LARGEST}) + :now",
    "parked": "0",
    "holds_key": "CASE body.unique_scope WHEN 'waiting' THEN 0 ELSE job.holds_key END",
}
# fields from here on are left out of the text where all of them have their defaults, as those of nearly every job
_RARE = FIELDS[FIELDS.index("suspect") :]


def _record_expression() -> str:
    """The record of a claimed row as an expression: a JSON array."""
    values = [_ONCE_CLAIMED.get(name) or value_of(name, column_of) for name in FIELDS]
    defaults = dict(zip(_RARE, Record.__struct_defaults__[-len(_RARE) :], strict=True))
    unset = ", ".join(column_of(name) for name, default in defaults.items() if default is None)
    others = [f"{column_of(name)} = {literal(default)}" for name, default in defaults.items() if default is not None]
    return (
        f"CASE WHEN coalesce({unset}) IS NULL AND {' AND '.join(others)} "
        f"THEN json_array({', '.join(values[: -len(_RARE)])}) ELSE json_array({', '.join(values)}) END"
    )


CLAIMED_RECORD = _record_expression()
_sql = load("claimed_rows", claimed=CLAIMED_RECORD, whole=WHOLE, may_run=MAY_RUN)
IN_LANE, AT_GATE = _sql["in_lane"], _sql["at_gate"]


class Source(NamedTuple):
    """Where a claim takes jobs from: a lane, or a gate if it has limits."""

    limits: str | None
    queue: str
    task: str
    routing_key: str | None

    @property
    def condition(self) -> str:
        """Whether a row belongs to it, with its fields as parameters."""
        return IN_LANE if self.limits is None else AT_GATE


class ClaimedRows(NamedTuple):
    """Jobs that one statement has read: a JSON array of their row numbers, and what makes records of them. The event loop
    calls that, because the writer's thread has other things to do. It raises Flawed if a row cannot be read."""

    numbers: str
    records: Callable[[], list[Record]]

    def __bool__(self) -> bool:
        return self.numbers != "[]"


NO_ROWS = ClaimedRows("[]", list)


def best_of(work: Work, claim: Claim, source: Source, limit: int, now: int) -> ClaimedRows:
    """The best jobs of a lane or gate."""
    statement = _sql["best_of_source"].replace("{source}", source.condition)
    return read_rows(work, statement, claim_parameters(claim, now) | source._asdict() | {"limit": limit})


def by_number(work: Work, claim: Claim, numbers: Sequence[int], now: int) -> ClaimedRows:
    """Jobs by the numbers of their rows."""
    return read_rows(work, _sql["by_number"], claim_parameters(claim, now) | {"numbers": json_text(numbers)})


def read_rows(work: Work, statement: str, parameters: dict[str, Any]) -> ClaimedRows:
    numbers, text = work.connection.rows(statement, parameters)[0]
    return ClaimedRows(numbers, partial(records_of, text))


def claim_parameters(claim: Claim, now: int) -> dict[str, Any]:
    """What a claim writes into each row, as parameters of a statement."""
    return {"stamp": claim.stamp, "worker": claim.worker, "now": now}


def as_many_as_fit(work: Work, read: Callable[[int], ClaimedRows], limit: int) -> ClaimedRows:
    """The best jobs; fewer if all of them together are too large for one text. The next claim gets the rest."""
    while True:
        try:
            return read(limit)
        except work.error as error:
            if work.code(error) != TOOBIG or limit == 1:
                raise
            limit = max(1, limit // 8)


def start(work: Work, claim: Claim, rows: ClaimedRows, now: int) -> list[ClaimedRows]:
    """Mark these rows as running."""
    if not rows:
        return []
    work.connection.change(_sql["start"], (claim.stamp, claim.worker, now, rows.numbers))
    return [rows]


def start_all(work: Work, claim: Claim, numbers: Sequence[int], now: int) -> list[ClaimedRows]:
    """Mark all rows with these numbers as running, and read them in as many texts as they need."""
    try:
        rows = by_number(work, claim, numbers, now)
    except work.error as error:
        if work.code(error) != TOOBIG or len(numbers) <= 1:
            raise
        half = len(numbers) // 2
        return [*start_all(work, claim, numbers[:half], now), *start_all(work, claim, numbers[half:], now)]
    return start(work, claim, rows, now)
