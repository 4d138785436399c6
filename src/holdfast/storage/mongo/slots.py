"""What runs under limits: a document for each job that is held and has limits, by the keys that it takes up.

Counted from these, nothing can drift: who takes a hold inserts the document, who gives it up removes it, in the same
transaction as the job's own move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from holdfast.job import Record
from holdfast.storage.limiting import keys_of

from .documents import Document
from .steps import Steps, aggregate, delete, insert


def move(moves: Iterable[tuple[Record | None, Record]]) -> Steps[None]:
    """Note who has begun to run under limits, and who no longer does."""
    differ = [after for before, after in moves if _runs(before) is not _runs(after)]
    yield from forget([record.id for record in differ if not _runs(record)])
    yield from insert("slots", [_slot(record) for record in differ if _runs(record)])


def forget(ids: Sequence[str]) -> Steps[None]:
    if ids:
        yield from delete("slots", {"_id": {"$in": list(ids)}})


def running(keys: Collection[str]) -> Steps[Counter[str]]:
    """How many jobs run under each of these keys (and under those that they have besides)."""
    counted: Counter[str] = Counter()
    by_limits: Document = {"_id": "$limits", "jobs": {"$sum": 1}}
    stages: list[Document] = [{"$match": {"keys": {"$in": list(keys)}}}, {"$group": by_limits}]
    for group in (yield from aggregate("slots", stages)):
        counted.update(dict.fromkeys(keys_of([group["_id"]]), group["jobs"]))
    return counted


def _runs(record: Record | None) -> bool:
    return record is not None and record.stamp is not None and record.limits is not None


def _slot(record: Record) -> Document:
    return {"_id": record.id, "limits": record.limits, "keys": list(keys_of([record.limits]))}
