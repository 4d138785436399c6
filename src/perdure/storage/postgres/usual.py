"""Claimed jobs, most of which are as usual: never tried before, with nothing that most jobs do not have.

All that is worth saying of such a job is its id, when it was made, and its payload: a tenth of a record. A claim tells those
that are alike in one row, and what they have in common once (`usual_columns` in queries/claim.sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

from perdure.job import Record
from perdure.storage.plain import records_like

from .rows import COLUMNS, JOINT, Flawed, readable_of, records_of

_ID, _RANK, _PAYLOAD = (COLUMNS.index(name) for name in ("id", "rank", "payload"))
_NO_ID = str(UUID(int=0))
_ORDER = attrgetter("rank", "id")


def claimed_of(rows: Sequence[Sequence[Any]], doubtful: list[str]) -> list[Record]:
    """The records of claimed jobs, the best first. The ids of those that cannot be read, or may be such, are added to the
    doubtful ones."""
    alike = [row for row in rows if row[_RANK] is None]
    records: list[Record] = []
    if len(alike) < len(rows):
        records, flawed = readable_of([row for row in rows if row[_RANK] is not None])
        doubtful += flawed
    for row in alike:
        records += _made(row, doubtful)
    records.sort(key=_ORDER)
    if len({record.priority for record in records}) > 1:
        records.sort(key=_urgency)  # which leaves those of one priority in their order
    return records


def _made(row: Sequence[Any], doubtful: list[str]) -> list[Record]:
    given = list(row)
    given[_ID], given[_PAYLOAD], given[_RANK] = _NO_ID, "", 0
    shorts = row[_ID].split(JOINT)
    try:
        (one,) = records_of([given])
        return records_like(one, shorts, row[_PAYLOAD].split(JOINT))
    except (Flawed, ValueError):  # a payload that holds a joint makes too many
        doubtful += [short.partition(" ")[2] for short in shorts]
        return []


def _urgency(record: Record) -> int:
    return -record.priority
