"""Exports whole jobs and kept keys from this store, and restores them exactly as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.job import FINAL, State
from perdure.core.record import Record
from perdure.errors import InvalidCall, StoreError
from perdure.storage.contract import JobDump, KeptKey

from ..claiming import fair_ranks
from ..connection.operations import Steps, delete, find, insert, update
from ..edges import edges
from ..limits import running_counts
from ..limits.limit_wakeups import wake_limit_claimers_for
from ..upkeep.unreadable import shown
from ..writing.unique_keys import give_up, holders
from ..writing.updates import insert_jobs
from .records import ALL, WHOLE, Document

OLDEST_FIRST = {"created_at": 1, "_id": 1}


class Restored(NamedTuple):
    ready: set[str]  # queues
    changed: bool
    unmade: bool  # there are more edges than fit into one transaction


def export(after: tuple[int, str] | None, limit: int, now: int) -> Steps[list[JobDump]]:
    """Jobs with their logs, oldest first."""
    filter: Document = {"marks": ALL}
    if after is not None:
        created_at, id = after
        later = [{"created_at": {"$gt": created_at}}, {"_id": {"$gt": id}}]
        filter |= {"created_at": {"$gte": created_at}, "$or": later}
    records = shown((yield from find("jobs", filter, WHOLE, sort=OLDEST_FIRST, limit=limit)), now)
    found = yield from find("logs", {"_id": {"$in": [record.id for record in records]}})
    logs = {document["_id"]: tuple(document["lines"]) for document in found}
    waits_for = yield from edges.find_parents([record.id for record in records])
    kept_for = yield from edges.find_kept_children([record.id for record in records if record.followed])
    return [
        JobDump(record, *(tuple(found.get(record.id, ())) for found in (logs, waits_for, kept_for)))
        for record in records
    ]


def restore(jobs: Sequence[JobDump]) -> Steps[Restored]:
    """Store jobs as they are, in place of jobs with the same ids."""
    records = [job.record for job in jobs]
    yield from _check_keys(records)
    ids = [record.id for record in records]
    yield from give_up(ids)
    yield from running_counts.give_up(ids)
    for collection in ("jobs", "places", "logs"):
        yield from delete(collection, {"_id": {"$in": ids}})
    yield from insert_jobs(records)
    yield from insert("logs", [{"_id": job.record.id, "lines": list(job.lines)} for job in jobs if job.lines])
    wanted = edges_of(jobs)
    too_many = bool((yield from edges.loosen(ids))) or len(wanted) > edges.AT_ONCE
    yield from edges.put([] if too_many else wanted)
    yield from wake_limit_claimers_for(records)
    yield from fair_ranks.restore(records)
    return Restored(
        {record.queue for record in records if record.state is State.READY},
        any(record.state in FINAL for record in records),
        too_many,
    )


def too_large(jobs: Sequence[JobDump], error: InvalidCall) -> StoreError:
    """The error for a list with a job that is too large. It came from another store, so it is not the caller's mistake."""
    largest = max((job.record for job in jobs), key=_size)
    return StoreError(f"job {largest.id} ({largest.task}): {error}")


def _size(record: Record) -> int:
    return sum(len(text or "") for text in (record.payload, record.result, record.errors, record.progress))


def edges_of(jobs: Sequence[JobDump]) -> list[Document]:
    """The edges that lead to these jobs, and the closed ones that they are kept for."""
    waiting = edges.edges_to_put((job.record, job.waits_for) for job in jobs)
    return [*waiting, *edges.to_keep((job.record.id, job.kept_for) for job in jobs)]


def _check_keys(records: Sequence[Record]) -> Steps[None]:
    wanted = {record.unique_key: record.id for record in records if record.holds_key and record.unique_key is not None}
    ids = {record.id for record in records}
    for key, job in (yield from holders(wanted)).items():
        if job not in ids:
            raise StoreError(f"the unique key of job {wanted[key]} is held by job {job}")


def export_keys(cursor: str | None, limit: int) -> Steps[tuple[list[KeptKey], str | None]]:
    filter: Document = {} if cursor is None else {"_id": {"$gt": cursor}}
    found = yield from find("keys", filter, sort={"_id": 1}, limit=limit + 1)
    keys = [
        KeptKey(document["_id"], document["job"], None if document["ends"] is None else int(document["ends"]))
        for document in found[:limit]
    ]
    return keys, keys[-1].key if len(found) > limit and keys else None


def restore_keys(keys: Sequence[KeptKey]) -> Steps[None]:
    yield from update(
        "keys",
        [{"q": {"_id": kept.key}, "u": {"job": kept.job, "ends": kept.ends}, "upsert": True} for kept in keys],
    )
