"""Putting jobs on record.

What the plan has to know (ids on record, owners of keys, settings and depths of queues) is read in the transaction, then the
new jobs are inserted. Whoever enqueues into a bounded queue touches its settings, so that two of them at once are a
conflict, and one comes after the other. Keys of scope waiting and active are guarded by a unique index on the jobs that hold
them, those of scope any and window by the ids of their own collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.job import NewJob, State
from holdfast.storage.contract import Placed, QueueSettings
from holdfast.storage.rules import KeyName, key_ends, key_name, plan, record_of

from .documents import Document, document_of, lanes_of_queue
from .queues import settings_from
from .steps import Steps, aggregate, find, insert, update

ID_ALONE = {"_id": 1}


class Enqueued(NamedTuple):
    placed: list[Placed]
    ready: set[str]  # queues


def enqueue(jobs: Sequence[NewJob], now: int, *, boldly: bool = False) -> Steps[Enqueued]:
    """Put the jobs on record. `boldly`: ids of plain jobs are not looked for before; a known one is an error then."""
    bounds = yield from _bounds(jobs)
    if boldly and not bounds and all(job.unique_key is None for job in jobs):
        placed, fresh = [Placed(job.id) for job in jobs], list(jobs)
    else:
        known = yield from _known(jobs)
        owners = yield from _owners(jobs, now)
        depths = yield from _depths(bounds)
        placed, fresh = plan(jobs, known, owners.get, bounds.get, depths.__getitem__)
    yield from _take_keys(fresh, now)
    records = [record_of(job, now) for job in fresh]
    yield from insert("jobs", [document_of(record) for record in records])
    yield from _touch({job.queue for job in fresh} & bounds.keys())
    return Enqueued(placed, {record.queue for record in records if record.state is State.READY})


def _bounds(jobs: Sequence[NewJob]) -> Steps[dict[str, QueueSettings]]:
    """The settings of those of the queues that are bounded."""
    queues = list({job.queue for job in jobs})
    found = yield from find("queues", {"_id": {"$in": queues}, "max_depth": {"$ne": None}})
    return {document["_id"]: settings_from(document) for document in found}


def _known(jobs: Sequence[NewJob]) -> Steps[set[str]]:
    found = yield from find("jobs", {"_id": {"$in": [job.id for job in jobs]}}, ID_ALONE)
    return {document["_id"] for document in found}


def _owners(jobs: Sequence[NewJob], now: int) -> Steps[dict[KeyName, str]]:
    """Who owns the keys that the jobs ask for."""
    names = {name for job in jobs if (name := key_name(job)) is not None}
    owners: dict[KeyName, str] = {}
    if held := [key for apart, key in names if not apart]:
        wanted = {"unique_key": {"$in": held}, "holds_key": True}
        for document in (yield from find("jobs", wanted, {"unique_key": 1})):
            owners[False, document["unique_key"]] = document["_id"]
    if kept := [key for apart, key in names if apart]:
        for document in (yield from find("keys", {"_id": {"$in": kept}})):
            if document["ends"] is None or document["ends"] > now:
                owners[True, document["_id"]] = document["job"]
    return owners


def _depths(queues: dict[str, QueueSettings]) -> Steps[dict[str, int]]:
    """How many jobs wait in each of these queues; no further than the bound counted."""
    depths = {}
    for queue, settings in queues.items():
        most = settings.max_depth or 0
        depth = yield from _counted({"place": lanes_of_queue(queue)}, most)
        if depth < most:
            depth += yield from _counted({"marks": f"q{queue}"}, most - depth)
        depths[queue] = depth
    return depths


def _counted(filter: Document, most: int) -> Steps[int]:
    if most <= 0:
        return 0
    counted = yield from aggregate("jobs", [{"$match": filter}, {"$limit": most}, {"$count": "jobs"}])
    return counted[0]["jobs"] if counted else 0


def _take_keys(jobs: Sequence[NewJob], now: int) -> Steps[None]:
    """Keys that are kept apart. One whose window is over is taken over."""
    kept = {job.unique_key: job for job in jobs if (name := key_name(job)) is not None and name[0]}
    yield from update(
        "keys",
        [
            {"q": {"_id": key}, "u": {"job": job.id, "ends": key_ends(job, now)}, "upsert": True}
            for key, job in sorted(kept.items())
        ],
    )


def _touch(queues: set[str]) -> Steps[None]:
    yield from update("queues", [{"q": {"_id": queue}, "u": {"$inc": {"touched": 1}}} for queue in sorted(queues)])
