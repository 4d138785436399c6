"""Claimed jobs, most of which are as usual: never tried before, with nothing that most jobs do not have.

All that is worth saying of such a job is its id, when it was made, and its payload: a tenth of a record. A claim tells those
that are alike in one row, and what they have in common once (`usual_columns` in queries/claim.sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from perdure.job import Record
from perdure.storage.plain import records_like

from .rows import COLUMNS, JOINT, records_of

_ID, _RANK, _PAYLOAD = (COLUMNS.index(name) for name in ("id", "rank", "payload"))
_ORDER = attrgetter("rank", "id")


def claimed_of(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """The records of claimed jobs, the best first."""
    alike = [row for row in rows if row[_RANK] is None]
    records = records_of([row for row in rows if row[_RANK] is not None]) if len(alike) < len(rows) else []
    for row in alike:
        records += _made(row)
    records.sort(key=_ORDER)
    if len({record.priority for record in records}) > 1:
        records.sort(key=_urgency)  # which leaves those of one priority in their order
    return records


def _made(row: Sequence[Any]) -> list[Record]:
    given = list(row)
    given[_ID] = given[_PAYLOAD] = ""
    given[_RANK] = 0
    (one,) = records_of([given])
    return records_like(one, row[_ID].split(JOINT), row[_PAYLOAD].split(JOINT))


def _urgency(record: Record) -> int:
    return -record.priority
