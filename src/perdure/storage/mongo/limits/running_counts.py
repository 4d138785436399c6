"""How many jobs run under limits. Each document says how many more, or fewer, run under the same limits.

The sum of the documents of a key is the number of jobs that run under it. A transaction that changes holds inserts such a
document, so the count cannot drift, and there are no conflicts. An exchange that gives up as many jobs as it takes inserts
none. Claims under limits, which come one after the other, merge many documents of a key; upkeep removes documents whose sum
is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from bson import ObjectId

from perdure.core.record import Record
from perdure.storage.rules.limits import keys_of

from ..connection.operations import Insert, Steps, aggregate, delete, find, hold_back_inserts, insert
from ..reading.records import Document

T = TypeVar("T")
MANY = 16  # documents of the keys of one claim beside one for each; more are put together
REMOVED = 10_000  # documents that one prune looks at
Change = Counter[str]  # limits → how many more jobs run under them


def move(moves: Iterable[tuple[Record | None, Record]]) -> Steps[None]:
    """Count the jobs that began or stopped running under limits."""
    change: Change = Counter()
    for before, after in moves:
        if after.limits is not None and (runs := after.stamp is not None) is not _runs(before):
            change[after.limits] += 1 if runs else -1
    yield from note(change)


def give_up(ids: Sequence[str]) -> Steps[None]:
    """Subtract jobs that are about to be replaced."""
    held: Document = {"_id": {"$in": list(ids)}, "stamp": {"$ne": None}, "limits": {"$ne": None}}
    found = yield from find("jobs", held, {"limits": 1})
    yield from note({limits: -jobs for limits, jobs in Counter(job["limits"] for job in found).items()})


def note(change: Mapping[str, int]) -> Steps[None]:
    """Store how many more run."""
    yield from insert("slots", [_slot(limits, jobs) for limits, jobs in change.items() if jobs])


def collect_counts(steps: Steps[T], change: Change) -> Steps[T]:
    """The same operations, but their counts are added to `change`, which the caller stores in the end."""

    def keeps(step: Insert) -> bool:
        if step.collection != "slots":
            return False
        for slot in step.documents:
            change[slot["limits"]] += slot["jobs"]
        return True

    return (yield from hold_back_inserts(steps, keeps))


def count_running(keys: Collection[str], known: list[Document] | None, change: Change) -> Steps[Counter[str]]:
    """How many jobs run under each of these keys (and under some others). `known`: all documents, if they are known;
    `change`: what is not stored yet."""
    wanted = set(keys)
    found = (yield from find("slots", {"keys": {"$in": list(keys)}})) if known is None else known
    slots = [slot for slot in found if not wanted.isdisjoint(slot["keys"])]
    if should_be_merged(slots, wanted):
        yield from delete("slots", {"_id": {"$in": [slot["_id"] for slot in slots]}})
        for slot in slots:
            change[slot["limits"]] += _jobs(slot)
        if known is not None:
            known[:] = [slot for slot in known if wanted.isdisjoint(slot["keys"])]
        slots = []
    counted: Counter[str] = Counter()
    for limits, jobs in [*((slot["limits"], _jobs(slot)) for slot in slots), *change.items()]:
        counted.update(dict.fromkeys(keys_of([limits]), jobs))
    return counted


def should_be_merged(slots: Iterable[Document], keys: Collection[str]) -> bool:
    """Whether there are too many documents of these keys."""
    wanted = set(keys)
    return sum(not wanted.isdisjoint(slot["keys"]) for slot in slots) > MANY + len(wanted)


def prune() -> Steps[None]:
    """Remove documents whose sum is nothing, of keys that are not asked for any more."""
    stages: list[Document] = [
        {"$limit": REMOVED},
        {"$group": {"_id": "$limits", "jobs": {"$sum": {"$ifNull": ["$jobs", 1]}}, "slots": {"$push": "$_id"}}},
        {"$match": {"jobs": 0}},
    ]
    if nothing := [id for group in (yield from aggregate("slots", stages)) for id in group["slots"]]:
        yield from delete("slots", {"_id": {"$in": nothing}})


def _runs(record: Record | None) -> bool:
    return record is not None and record.stamp is not None and record.limits is not None


def _slot(limits: str, jobs: int) -> Document:
    return {"_id": str(ObjectId()), "limits": limits, "keys": list(keys_of([limits])), "jobs": jobs}


def _jobs(slot: Document) -> int:
    return int(slot.get("jobs", 1))  # one without a number is of a single job, as they were noted at first
