"""The set-wise moves of upkeep: what has lapsed, expired, or been kept long enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy

from perdure.core.clock import SECOND
from perdure.core.job import FINAL, WAITING, State
from perdure.core.record import Record
from perdure.storage.rules.records import is_removable, write_hidden

from .. import kv
from ..claiming import fair_ranks
from ..claiming.claim_positions import forget
from ..connection.operations import Steps, aggregate, delete, find
from ..edges import edges
from ..limits import limit_gates, running_counts
from ..reading.document_shapes import is_number, is_text
from ..reading.records import SLIM, WHOLE, Document, expiry_mark
from ..writing.small_documents import kind
from ..writing.updates import AT_ONCE, read_rows, write
from . import lease_batches
from .unreadable import forget_kept, is_leased, read, readable, set_aside

SMALL = 20_000
NEEDED = 1_000  # jobs past their time that others need, looked at in each prune
LOOKS, BATCHES = 50, 20  # batches of leases: looks in one go, and how many at once
NOT_SOON = 60 * SECOND
REMEMBERED = 7 * 86_400 * SECOND  # that starts have left their window: if the clock goes back they count again
SIGHT = SLIM | {"result": 0, "errors": 0}  # what is looked at of a job that is taken out of sight
_NOT_RUNNING = [state.value for state in State if state is not State.RUNNING]
_HELD_OR_STRANGE: list[Document] = [{"stamp": {"$ne": None}}, {"state": {"$nin": _NOT_RUNNING}}]
COUNTED = dict.fromkeys(("task", "state", "finished_at", "keep_last", "stamp"), 1)


def find_lapsed(limit: int, contact: int, now: int) -> Steps[list[Record]]:
    """Jobs whose lease is over, the longest over first. Leases that reach too far (the clock went back) are cut. Batches of
    leases are looked at until there are enough, and tidied on the way."""
    over: dict[str, Record] = {}
    seen: list[str] = []
    for _ in range(LOOKS):
        found = yield from lease_batches.leases(now, seen, BATCHES)
        if not found:
            break
        held = yield from _held([id for batch in found for id in batch["ids"]], now)
        yield from let_go([row for row in held.values() if row.state in WAITING])
        held = {id: row for id, row in held.items() if row.state not in WAITING}
        yield from _cut_leases([row for row in held.values() if _end(row) > now + row.lease], now)
        yield from lease_batches.tidy(found, held, now)
        over |= {id: row for id, row in held.items() if _end(row) <= now and row.lease <= 3 * contact}
        seen += [batch["_id"] for batch in found]
        if len(over) >= limit and all(_end(row) <= found[-1]["at"] for row in _longest(over)[:limit]):
            break
    return _longest(over)[: max(limit, 0)]


def next_lapse(now: int) -> Steps[int | None]:
    """How long it takes at least until a lease is over. Batches of renewed leases may say so too early."""
    first = yield from lease_batches.next_lease()
    return None if first is None else first - now


def _held(ids: Sequence[str], now: int) -> Steps[dict[str, Record]]:
    """The held ones of these jobs. One that cannot be read is set aside, unless its holder is still at it."""
    held: dict[str, Record] = {}
    for begin in range(0, len(ids), AT_ONCE):
        some: Document = {"_id": {"$in": ids[begin : begin + AT_ONCE]}, "$or": _HELD_OR_STRANGE}
        records, bad = read((yield from find("jobs", some, WHOLE)))
        held |= {record.id: record for record in records if record.stamp is not None}
        yield from set_aside([document for document in bad if not is_leased(document, now)], now)
    return held


def _end(record: Record) -> int:
    return record.leased_until or 0


def _longest(over: Mapping[str, Record]) -> list[Record]:
    return sorted(over.values(), key=lambda record: (_end(record), record.id))


def let_go(records: Sequence[Record]) -> Steps[None]:
    """Let jobs wait that are said to wait and to be held: no move of ours leaves a job so."""
    before = {record.id: copy(record) for record in records}
    for record in records:
        record.stamp = record.leased_by = record.leased_until = None
    yield from forget(list(before))
    yield from write(before, records)


def _cut_leases(records: Sequence[Record], now: int) -> Steps[None]:
    before = {record.id: copy(record) for record in records}
    for record in records:
        record.leased_until = now + record.lease
    yield from write(before, records)


def find_expired(limit: int, now: int) -> Steps[list[Record]]:
    """Waiting jobs that were not started in time, the longest over first."""
    if limit <= 0:
        return []
    due: Document = {"marks": {"$elemMatch": {"$gte": "x", "$lte": expiry_mark(now)}}}
    sort = {"expires_at": 1, "_id": 1}
    return (yield from readable((yield from find("jobs", due, WHOLE, sort=sort, limit=limit)), now))


def prune(limit: int, now: int, *, small: bool) -> Steps[int]:
    """Hide or remove what is no longer kept; gives the number of jobs."""
    yield from delete("keys", {"ends": {"$gt": 0, "$lte": now}})
    past = yield from lease_batches.past(now, limit + NEEDED)
    over = yield from _over(list(past), now)
    if len(past) < limit + NEEDED:
        over |= yield from _too_many(now, small=small)
    needed = (yield from edges.find_needed(list(over))) if over else set[str]()
    put_off = needed & past.keys() if len(needed) >= NEEDED else set[str]()
    leaving = [id for id in over if id not in needed][:limit]
    gone = [id for id in leaving if not over[id]]
    yield from _hide(gone, now)
    gone += yield from _remove([id for id in leaving if over[id]])
    done_with = put_off.union(gone)
    yield from lease_batches.done_with({id: names for id, names in past.items() if id in done_with or id not in over})
    if put_off:  # so many are needed by others that they would hide those that are not
        yield from lease_batches.put_off(sorted(put_off), now + NOT_SOON)
    yield from fair_ranks.prune()
    yield from limit_gates.repair(now)
    yield from running_counts.prune()
    yield from delete("notes", {"_id": kind("starts"), "over": {"$lte": now - REMEMBERED}})
    return len(gone)


def _hide(ids: Sequence[str], now: int) -> Steps[None]:
    before = yield from read_rows(ids, SIGHT, now=now)
    hidden = [copy(record) for record in before.values()]
    for record in hidden:
        write_hidden(record)
    yield from write(before, hidden)


def _remove(ids: Sequence[str]) -> Steps[Sequence[str]]:
    if ids:
        ids = yield from edges.forget(ids)
    if ids:
        yield from delete("jobs", {"_id": {"$in": ids}})
        yield from delete("logs", {"_id": {"$in": ids}})
        yield from kv.forget(ids)
        yield from forget_kept(ids)
    return ids


def _over(ids: Sequence[str], now: int) -> Steps[dict[str, bool]]:
    """Those of these jobs that are past their time indeed, the longest first; of each, whether it may be removed."""
    ended: Document = {"state": {"$in": [state.value for state in FINAL]}, "stamp": None, "prune_at": {"$lte": now}}
    if not ids:
        return {}
    sort = {"prune_at": 1, "_id": 1}
    fields = {"finished_at": 1, "hidden": 1}
    found = yield from find("jobs", {"_id": {"$in": ids}, **ended}, fields, sort=sort)
    strange = [row for row in found if not is_number(row.get("finished_at"))]
    yield from set_aside(strange, now)
    return {row["_id"]: _may_go(row, now) for row in found if is_number(row.get("finished_at"))}


def _may_go(row: Document, now: int) -> bool:
    return is_removable(row.get("hidden") is True, row.get("finished_at"), now)


def _too_many(now: int, *, small: bool) -> Steps[dict[str, bool]]:
    """Ended jobs that have `keep_last` newer ones of their task, dead ones counted apart; of each, whether it may be
    removed. A long history is not looked through for this: then only counted jobs take places, and a few more may stay."""
    counted: Document = {"marks": {"$elemMatch": {"$gte": "n", "$lt": "o"}}}
    found = yield from aggregate("jobs", [{"$match": counted}, {"$group": {"_id": "$task"}}])
    tasks = sorted(group["_id"] for group in found if is_text(group["_id"]))
    if not tasks:
        return {}
    ended: Document = {"task": {"$in": tasks}, "finished_at": {"$ne": None}}
    if not small:
        ended = {"marks": {"$in": [f"n{task}" for task in tasks]}}
    rows = yield from find("jobs", {**ended, "hidden": None}, COUNTED, sort={"finished_at": -1, "_id": -1})
    strange = [row for row in rows if not _is_countable(row)]
    yield from set_aside(strange, now)
    rows = [row for row in rows if _is_countable(row)]
    newer: Counter[tuple[str, bool]] = Counter()
    too_many: dict[str, bool] = {}
    for row in rows:
        group = row["task"], row["state"] == State.DEAD.value
        kept = row.get("keep_last")
        if kept is not None and newer[group] >= kept and row.get("stamp") is None:
            too_many[row["_id"]] = _may_go(row, now)
        newer[group] += 1
    return too_many


def _is_countable(row: Document) -> bool:
    last = row.get("keep_last")
    return is_text(row.get("task")) and is_number(row.get("finished_at")) and (last is None or is_number(last))
