"""Shares of fair queues: accounts of tenants, and the ranks of new jobs.

An account is a note with the rank of a tenant's last job in a queue and priority, or with the floor. A transaction that
gives shares writes the floor, so two at once conflict and one comes after the other.

A transaction that may last, a handler's or a caller's, must not lock the floor. Its jobs wait for their share as if for one
parent more, and `resolve_edges` gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import msgspec
from bson import ObjectId

from perdure.core.job import State
from perdure.core.record import NewJob, Record
from perdure.storage.contract import QueueSettings
from perdure.storage.rules.fairness import Account, accounts_of, assign_ranks, floor_of, payer_of
from perdure.storage.rules.records import write_close

from ..connection.operations import Steps, aggregate, delete, find, update
from ..limits.limit_wakeups import notify_limit_claimers
from ..reading.queues import settings_from
from ..reading.records import Document, known_lanes, lanes_of_queue
from ..writing import updates
from ..writing.small_documents import kind

LANES_AT_ONCE = 150  # beyond 200 the server sorts what it finds instead of merging lanes


def shares(jobs: Sequence[NewJob], settings: Mapping[str, QueueSettings], now: int) -> Steps[dict[str, int]]:
    """The ranks of those new jobs whose queues are fair, by id."""
    fair = {name: queue.weights for name, queue in settings.items() if queue.fair}
    sharing = [job for job in jobs if job.queue in fair]
    if not sharing:
        return {}
    floors = {floor_of(job) for job in sharing}
    accounts = yield from _accounts(floors | {payer_of(job) for job in sharing})
    heads = yield from _heads(floors)
    given, changed = assign_ranks(sharing, accounts, heads, fair, now)
    yield from update("notes", [_charge(account, rank) for account, rank in changed.items()])
    return {job.id: rank for job, rank in zip(sharing, given, strict=True)}


def give(ids: Sequence[str], now: int) -> Steps[list[Record]]:
    """Give shares to jobs that wait for them; returns the jobs that may run now."""
    found = yield from updates.read_rows(ids, now=now)
    waiting = [row for id in ids if (row := found.get(id)) is not None and row.state is State.BLOCKED]
    queues = yield from find("queues", {"_id": {"$in": sorted({row.queue for row in waiting})}, "fair": True})
    given = yield from shares(
        [_stand_in(row) for row in waiting], {queue["_id"]: settings_from(queue) for queue in queues}, now
    )
    return (yield from let_go(ids, given, now))


def let_go(ids: Sequence[str], given: Mapping[str, int], now: int) -> Steps[list[Record]]:
    """Let blocked jobs wait for one parent less, with these ranks; returns the jobs that may run now."""
    waiting = [row for row in (yield from updates.read_rows(ids, now=now)).values() if row.state is State.BLOCKED]
    before = {row.id: copy(row) for row in waiting}
    for row in waiting:
        row.rank = given.get(row.id, row.rank)
        write_close(row, now)
    yield from updates.write(before, waiting)
    yield from notify_limit_claimers((before[row.id], row) for row in waiting)
    return [row for row in waiting if row.state is State.READY]


def restore(records: Iterable[Record]) -> Steps[None]:
    """Raise the accounts of tenants whose jobs were restored from another store."""
    raised = [
        {"q": {"_id": _id(account)}, "u": {"$max": {"rank": rank}, "$set": {"touched": ObjectId()}}, "upsert": True}
        for account, rank in accounts_of(records).items()
    ]
    yield from update("notes", raised)


def prune() -> Steps[None]:
    """Remove accounts below the floor of their queue: a new job of that tenant begins at the floor anyway."""
    for floor in (yield from find("notes", {"_id": kind("floor")})):
        name = floor["_id"].removeprefix("floor/").removesuffix("]")
        ours: Document = {"$gte": f"account/{name},", "$lt": f"account/{name}-"}  # which comes right after a comma
        yield from delete("notes", {"_id": ours, "rank": {"$lte": floor["rank"]}})


# ---- below -----------------------------------------------------------------------------------------
def _accounts(wanted: Iterable[Account]) -> Steps[dict[Account, int]]:
    by_id = {_id(account): account for account in wanted}
    found = yield from find("notes", {"_id": {"$in": list(by_id)}}, {"rank": 1})
    return {by_id[document["_id"]]: int(document["rank"]) for document in found}


def _id(account: Account) -> str:
    whose = [account.queue, account.priority]
    if account.tenant is None:
        return f"floor/{msgspec.json.encode(whose).decode()}"
    return f"account/{msgspec.json.encode([*whose, account.tenant]).decode()}"


def _charge(account: Account, rank: int) -> Document:
    return {"q": {"_id": _id(account)}, "u": {"$set": {"rank": rank, "touched": ObjectId()}}, "upsert": True}


def _heads(floors: Iterable[Account]) -> Steps[dict[Account, int]]:
    """By floor, the smallest rank of the jobs that can be claimed there."""
    heads: dict[Account, int] = {}
    lanes: dict[str, list[str]] = {}
    for floor in floors:
        if floor.queue not in lanes:
            lanes[floor.queue] = yield from _lanes(floor.queue)
        ours = lanes[floor.queue]
        for begin in range(0, len(ours), LANES_AT_ONCE):
            wanted: Document = {"place": {"$in": ours[begin : begin + LANES_AT_ONCE]}, "order": -floor.priority}
            for head in (yield from find("places", wanted, {"tie": 1}, sort={"tie": 1, "_id": 1}, limit=1)):
                rank = int(head.get("tie", 0))
                heads[floor] = min(heads.get(floor, rank), rank)
    return heads


def _lanes(queue: str) -> Steps[list[str]]:
    """The queue's lanes, without those of suspects."""
    found = yield from aggregate(
        "places",
        [
            {"$match": {"place": lanes_of_queue(queue)}},
            {"$sort": {"place": 1, "order": 1, "tie": 1, "_id": 1}},
            {"$group": {"_id": "$place"}},
        ],
    )
    return [lane.text() for lane in known_lanes(group["_id"] for group in found) if not lane.suspect]


def _stand_in(row: Record) -> NewJob:
    """A stored job in the form that the rules charge for."""
    return NewJob(
        id=row.id, task=row.task, payload="", queue=row.queue, priority=row.priority, at=row.run_at, tenant=row.tenant,
        backoff="", retention="", dead_retention="",
    )  # fmt: skip
