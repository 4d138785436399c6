"""The set-wise moves of upkeep: what has lapsed, expired, or been kept long enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from holdfast.clock import SECOND
from holdfast.job import FINAL, Record, State

from . import batches, edges, gates, shares, shelf, slots
from .documents import WHOLE, Document, expiry_mark, records_from
from .notes import kind
from .rows import AT_ONCE, write
from .steps import Steps, aggregate, delete, find

SMALL = 20_000
NEEDED = 1_000  # jobs past their time that others need, looked at in each prune
LOOKS, BATCHES = 50, 20  # batches of leases: looks in one go, and how many at once
NOT_SOON = 60 * SECOND
REMEMBERED = 7 * 86_400 * SECOND  # that starts have left their window: if the clock goes back they count again
COUNTED = ("task", "state", "finished_at", "keep_last", "stamp")


def lapsed(limit: int, contact: int, now: int) -> Steps[list[Record]]:
    """Jobs whose lease is over, the longest over first. Leases that reach too far (the clock went back) are cut. Batches of
    leases are looked at until there are enough, and tidied on the way."""
    over: dict[str, Record] = {}
    seen: list[str] = []
    for _ in range(LOOKS):
        found = yield from batches.leases(now, seen, BATCHES)
        if not found:
            break
        held = yield from _held([id for batch in found for id in batch["ids"]])
        yield from _cut_leases([row for row in held.values() if _end(row) > now + row.lease], now)
        yield from batches.tidy(found, held, now)
        over |= {id: row for id, row in held.items() if _end(row) <= now and row.lease <= 3 * contact}
        seen += [batch["_id"] for batch in found]
        if len(over) >= limit and all(_end(row) <= found[-1]["at"] for row in _longest(over)[:limit]):
            break
    return _longest(over)[: max(limit, 0)]


def _held(ids: Sequence[str]) -> Steps[dict[str, Record]]:
    held: dict[str, Record] = {}
    for begin in range(0, len(ids), AT_ONCE):
        some: Document = {"_id": {"$in": ids[begin : begin + AT_ONCE]}, "stamp": {"$ne": None}}
        held |= {record.id: record for record in records_from((yield from find("jobs", some, WHOLE)))}
    return held


def _end(record: Record) -> int:
    return record.leased_until or 0


def _longest(over: Mapping[str, Record]) -> list[Record]:
    return sorted(over.values(), key=lambda record: (_end(record), record.id))


def _cut_leases(records: Sequence[Record], now: int) -> Steps[None]:
    before = {record.id: copy(record) for record in records}
    for record in records:
        record.leased_until = now + record.lease
    yield from write(before, records)


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
    past = yield from batches.past(now, limit + NEEDED)
    over = dict.fromkeys((yield from _over(list(past), now)))
    if len(past) < limit + NEEDED:
        over |= dict.fromkeys((yield from _too_many(small=small)))
    needed = (yield from edges.needed(list(over))) if over else set[str]()
    put_off = needed & past.keys() if len(needed) >= NEEDED else set[str]()
    ids = [id for id in over if id not in needed][:limit]
    if ids:
        ids = yield from edges.forget(ids)
    if ids:
        yield from delete("jobs", {"_id": {"$in": ids}})
        yield from delete("logs", {"_id": {"$in": ids}})
        yield from shelf.forget(ids)
    gone = put_off.union(ids)
    yield from batches.done_with({id: names for id, names in past.items() if id in gone or id not in over})
    if put_off:  # so many are needed by others that they would hide those that are not
        yield from batches.put_off(sorted(put_off), now + NOT_SOON)
    yield from shares.prune()
    yield from gates.repair(now)
    yield from slots.prune()
    yield from delete("notes", {"_id": kind("starts"), "over": {"$lte": now - REMEMBERED}})
    return len(ids)


def _over(ids: Sequence[str], now: int) -> Steps[list[str]]:
    """Those of these jobs that are past their time indeed, the longest first."""
    ended: Document = {"state": {"$in": [state.value for state in FINAL]}, "stamp": None, "prune_at": {"$lte": now}}
    if not ids:
        return []
    sort = {"prune_at": 1, "_id": 1}
    return [one["_id"] for one in (yield from find("jobs", {"_id": {"$in": ids}, **ended}, {"_id": 1}, sort=sort))]


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
