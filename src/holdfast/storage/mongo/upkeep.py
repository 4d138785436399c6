"""The set-wise moves of upkeep: what has lapsed, expired, or been kept long enough."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from holdfast.clock import SECOND
from holdfast.job import Record, State

from . import edges, gates, shares, shelf
from .claim import IN_ORDER
from .documents import HELD, PAST, WHOLE, Document, expiry_mark, records_from, update_of
from .notes import kind
from .steps import Steps, aggregate, delete, find, gathered, update

SMALL = 20_000
NEEDED = 1_000  # jobs past their time that others need, looked at in each prune
NOT_SOON = 60 * SECOND
REMEMBERED = 7 * 86_400 * SECOND  # that starts have left their window: if the clock goes back they count again
COUNTED = ("task", "state", "finished_at", "keep_last", "stamp")


def lapsed(limit: int, contact: int, now: int) -> Steps[list[Record]]:
    """Jobs whose lease is over. Leases that reach too far (the clock went back) are cut. One look for both: it mostly finds
    nothing."""
    over: Document = {"order": {"$lte": now}, "lease": {"$lte": 3 * contact}}
    too_far: Document = {"order": {"$gt": now}, "$expr": {"$gt": ["$leased_until", {"$add": ["$lease", now]}]}}
    held: Document = {"place": HELD, "$or": [over, too_far]}
    at_once = max(limit, 1)
    while True:
        found = records_from((yield from find("jobs", held, WHOLE, sort=IN_ORDER, limit=at_once)))
        long = [record for record in found if (record.leased_until or 0) > now]
        yield from _cut_leases(long, now)
        if len(long) < at_once:
            return [record for record in found if (record.leased_until or 0) <= now][: max(limit, 0)]


def _cut_leases(records: Sequence[Record], now: int) -> Steps[None]:
    updates = {}
    for record in records:
        cut = copy(record)
        cut.leased_until = now + record.lease
        updates[record.id] = update_of(record, cut)
    yield from update("jobs", gathered(updates))


def expired(limit: int, now: int) -> Steps[list[Record]]:
    """Waiting jobs that were not started in time, the longest over first."""
    if limit <= 0:
        return []
    due: Document = {"marks": {"$elemMatch": {"$gte": "x", "$lte": expiry_mark(now)}}}
    sort = {"expires_at": 1, "_id": 1}
    return records_from((yield from find("jobs", due, WHOLE, sort=sort, limit=limit)))


def prune(limit: int, now: int, *, small: bool) -> Steps[int]:
    """Remove what is no longer kept; gives the number of jobs."""
    yield from delete("keys", {"ends": {"$gt": 0, "$lte": now}})
    past: Document = {"place": PAST, "order": {"$lte": now}}
    found = yield from find("jobs", past, {"_id": 1}, sort=IN_ORDER, limit=limit + NEEDED)
    over = dict.fromkeys(document["_id"] for document in found)
    if len(over) < limit + NEEDED:
        over |= dict.fromkeys((yield from _too_many(small=small)))
    needed = (yield from edges.needed(list(over))) if over else set[str]()
    if len(needed) >= NEEDED:
        yield from _put_off(sorted(needed), now)
    ids = [id for id in over if id not in needed][:limit]
    if ids:
        ids = yield from edges.forget(ids)
    if ids:
        yield from delete("jobs", {"_id": {"$in": ids}})
        yield from delete("logs", {"_id": {"$in": ids}})
        yield from shelf.forget(ids)
    yield from shares.prune()
    yield from gates.repair(now)
    yield from delete("notes", {"_id": kind("starts"), "over": {"$lte": now - REMEMBERED}})
    return len(ids)


def _put_off(ids: Sequence[str], now: int) -> Steps[None]:
    """So many jobs past their time are needed by others that they would hide those that are not."""
    later: Document = {"$set": {"order": now + NOT_SOON}}
    yield from update("jobs", [{"q": {"_id": {"$in": ids}, "place": PAST}, "u": later, "multi": True}])


def _too_many(*, small: bool) -> Steps[list[str]]:
    """Ended jobs that have `keep_last` newer ones of their task, dead ones counted apart. A long history is not looked
    through for this: then only counted jobs take places, and a few more may stay."""
    counted: Document = {"marks": {"$elemMatch": {"$gte": "n", "$lt": "o"}}}
    found = yield from aggregate("jobs", [{"$match": counted}, {"$group": {"_id": "$task"}}])
    too_many = []
    for task in sorted(group["_id"] for group in found):
        ended: Document = {"task": task, "finished_at": {"$ne": None}} if small else {"marks": f"n{task}"}
        ended |= {"hidden": None}
        rows = yield from find("jobs", ended, dict.fromkeys(COUNTED, 1), sort={"finished_at": -1, "_id": -1})
        for dead in (False, True):
            group = [row for row in rows if (row["state"] == State.DEAD.value) is dead]
            too_many += [
                row["_id"]
                for newer, row in enumerate(group)
                if row.get("keep_last") is not None and newer >= row["keep_last"] and row.get("stamp") is None
            ]
    return too_many
