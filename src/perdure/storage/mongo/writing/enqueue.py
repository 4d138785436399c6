"""Enqueues jobs.

The transaction reads what the plan needs (known ids, owners of keys, settings and depths of queues) and inserts the new
jobs. An enqueue into a bounded queue writes to its settings, so two at once conflict and one comes after the other. The ids
of notes and of the collection `keys` guard unique keys in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from bson import ObjectId

from perdure.core.job import State
from perdure.core.record import NewJob, Record
from perdure.storage.contract import EnqueueResult, QueueSettings
from perdure.storage.rules.records import (
    KeyName,
    key_ends,
    key_name,
    parents_of,
    plan,
    record_of,
    refuse_dropped_parents,
    refuse_missing_parents,
)

from ..claiming.fair_ranks import shares
from ..connection.operations import Steps, aggregate, find, insert, update
from ..edges.edges import edges_to_put, leave
from ..edges.resolve_edges import EdgeResolution, resolve_edges_of
from ..limits.limit_wakeups import notify_limit_claimers
from ..reading.queues import settings_from
from ..reading.records import Document, gates_of_queue, lanes_of_queue
from .unique_keys import holders
from .updates import find_followable, find_known, insert_jobs

EDGES_AT_ONCE = 8_000  # what one transaction writes has to fit into a part of the server's cache


class Enqueued(NamedTuple):
    placed: list[EnqueueResult]
    ready: set[str]  # queues
    left: list[str]  # entries on the list for `resolve_edges`
    unmade: list[str]  # those for edges that are still to be made
    changed: bool  # some job ended by it


class Stored(NamedTuple):
    """Stored jobs whose edges are not resolved yet."""

    placed: list[EnqueueResult]
    ready: set[str]  # queues
    parents: list[str]  # jobs that they wait for, of those that were there before
    left: list[str]  # entries on the list for `resolve_edges`
    unmade: list[str]  # those for edges that are still to be made


def enqueue(
    jobs: Sequence[NewJob],
    now: int,
    chunk: int,
    resolution: EdgeResolution = EdgeResolution.TOGETHER,
    *,
    boldly: bool = False,
) -> Steps[Enqueued]:
    """Store the jobs and resolve their edges. `boldly`: insert ordinary jobs without a look at their ids; a known id raises
    a duplicate key error."""
    stored = yield from store(jobs, now, resolution, boldly=boldly)
    followed = yield from resolve_edges_of(stored.parents, resolution, chunk, now)
    ready, left = stored.ready | followed.ready, stored.left + followed.left
    return Enqueued(stored.placed, ready, left, stored.unmade, followed.changed)


def store(
    jobs: Sequence[NewJob], now: int, resolution: EdgeResolution, *, bounded: bool = True, boldly: bool = False
) -> Steps[Stored]:
    if not jobs:
        return Stored([], set(), [], [], [])
    settings = yield from _settings(jobs)
    if boldly and not settings and all(job.unique_key is None and job.after is None for job in jobs):
        placed, fresh = [EnqueueResult(job.id) for job in jobs], list(jobs)
    else:
        known = yield from find_known([job.id for job in jobs])
        owners = yield from _owners(jobs, now)
        depths = yield from _depths(settings if bounded else {})
        placed, fresh = plan(jobs, known, owners.get, settings.get, depths.__getitem__, bounded=bounded)
    following = [job for job in fresh if job.after is not None]
    if following and resolution is EdgeResolution.ELSEWHERE:
        refuse_dropped_parents(following, {each.id for each in placed if each.dropped})
    if following and resolution is not EdgeResolution.ELSEWHERE:
        refuse_missing_parents(
            following, (yield from find_followable(_waited_for(following, fresh))) | {job.id for job in fresh}
        )
    for_share = [job.id for job in fresh if resolution is not EdgeResolution.TOGETHER and _is_fair(settings, job)]
    for_edges = _with_too_many_edges(following)
    given = (yield from shares(fresh, settings, now)) if resolution is EdgeResolution.TOGETHER else {}
    records = _records(fresh, following, Counter([*for_share, *for_edges]), given, now)
    yield from _take_keys(fresh, now)
    yield from insert_jobs(records)
    following = [job for job in following if job.id not in for_edges]
    yield from insert("edges", edges_to_put((job, parents_of(job.after)) for job in following))
    yield from notify_limit_claimers((None, record) for record in records)
    left = yield from leave(for_share, "share")
    unmade = yield from leave(for_edges, "make")
    if bounded:
        yield from _touch({job.queue for job in fresh if _is_bounded(settings, job)})
    ready = {record.queue for record in records if record.state is not State.BLOCKED}
    return Stored(placed, ready, _waited_for(following, fresh), left, unmade)


def _settings(jobs: Sequence[NewJob]) -> Steps[dict[str, QueueSettings]]:
    """The settings of those queues that are bounded or fair."""
    queues = list({job.queue for job in jobs})
    bounded_or_fair = [{"max_depth": {"$ne": None}}, {"fair": True}]
    found = yield from find("queues", {"_id": {"$in": queues}, "$or": bounded_or_fair})
    return {document["_id"]: settings_from(document) for document in found}


def _is_fair(settings: Mapping[str, QueueSettings], job: NewJob) -> bool:
    return job.queue in settings and settings[job.queue].fair


def _is_bounded(settings: Mapping[str, QueueSettings], job: NewJob) -> bool:
    return job.queue in settings and settings[job.queue].max_depth is not None


def _waited_for(jobs: Sequence[NewJob], fresh: Sequence[NewJob]) -> list[str]:
    """The parents of these jobs, without those that are new themselves."""
    parents = dict.fromkeys(parent for job in jobs for parent in parents_of(job.after))
    new = {job.id for job in fresh} if parents else set[str]()
    return [parent for parent in parents if parent not in new]


def _with_too_many_edges(following: Sequence[NewJob]) -> list[str]:
    """The jobs whose edges do not fit into the transaction. They are made afterwards."""
    too_many = []
    room = EDGES_AT_ONCE
    for job in following:
        number = len(parents_of(job.after))
        if number > room:
            too_many.append(job.id)
        else:
            room -= number
    return too_many


def _records(
    fresh: Sequence[NewJob],
    following: Sequence[NewJob],
    held_back: Counter[str],
    given: Mapping[str, int],
    now: int,
) -> list[Record]:
    """The new records. A job that still needs a share or edges waits as if for one parent more. Parents among the new jobs
    are marked as followed."""
    followed = {parent for job in following for parent in parents_of(job.after)}
    records = []
    for job in fresh:
        if held_back[job.id]:
            job = msgspec.structs.replace(job, waits=job.waits + held_back[job.id])
        record = record_of(job, now, given.get(job.id))
        record.followed = job.id in followed
        records.append(record)
    return records


def _owners(jobs: Sequence[NewJob], now: int) -> Steps[dict[KeyName, str]]:
    """The owners of the keys that the jobs ask for."""
    names = {name for job in jobs if (name := key_name(job)) is not None}
    owners: dict[KeyName, str] = {}
    for key, job in (yield from holders(key for apart, key in names if not apart)).items():
        owners[False, key] = job
    if kept := [key for apart, key in names if apart]:
        for document in (yield from find("keys", {"_id": {"$in": kept}})):
            if document["ends"] is None or document["ends"] > now:
                owners[True, document["_id"]] = document["job"]
    return owners


def _depths(queues: Mapping[str, QueueSettings]) -> Steps[dict[str, int]]:
    """How many jobs wait in each of these queues, counted up to its bound."""
    depths = {}
    for queue, settings in queues.items():
        most = settings.max_depth or 0
        depth = yield from _count("places", {"place": lanes_of_queue(queue)}, most)
        for collection, filter in (("places", {"place": gates_of_queue(queue)}), ("jobs", {"marks": f"q{queue}"})):
            if depth < most:
                depth += yield from _count(collection, filter, most - depth)
        depths[queue] = depth
    return depths


def _count(collection: str, filter: Document, most: int) -> Steps[int]:
    if most <= 0:
        return 0
    counted = yield from aggregate(collection, [{"$match": filter}, {"$limit": most}, {"$count": "jobs"}])
    return counted[0]["jobs"] if counted else 0


def _take_keys(jobs: Sequence[NewJob], now: int) -> Steps[None]:
    """Write the keys of scope any and window. A key whose window is over changes its owner."""
    kept = {job.unique_key: job for job in jobs if (name := key_name(job)) is not None and name[0]}
    yield from update(
        "keys",
        [
            {"q": {"_id": key}, "u": {"job": job.id, "ends": key_ends(job, now)}, "upsert": True}
            for key, job in sorted(kept.items())
        ],
    )


def _touch(queues: set[str]) -> Steps[None]:
    touched: Document = {"$set": {"touched": ObjectId()}}
    yield from update("queues", [{"q": {"_id": queue}, "u": touched} for queue in sorted(queues)])
