"""Finds leases that are over and ended jobs that may be pruned. One document tells the time for all jobs that were claimed,
renewed or ended together.

An index over the jobs would have to change with every claim, renewal and end, and inside a transaction such a change costs
several times as much as the rest of the write. Jobs that were claimed together have the same lease, and jobs that ended
together are kept equally long, so a document for each such batch does: when the time has come, and which jobs it is about.

    lease/WORKER/STAMP/…   jobs claimed together      at = the first end of a lease   given = when it was given
    renewed/…              jobs renewed together      the same
    past/…                 jobs that ended together   at = prune_at

A batch is a hint where to look; what is true stands on the jobs. It is only ever inserted by those who move jobs, so that
nobody meets anybody, and tidied by upkeep, when its time has come. What can be counted on: every held job stands in the
batch of its claim, and in one whose time is not later than the end of its lease; every ended job that may be removed stands
in one whose time is not later than its prune_at, or was put off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bson import ObjectId

from perdure.core.job import FINAL
from perdure.core.record import Record

from ..connection.operations import Steps, aggregate, delete, find, insert, update
from ..reading.document_shapes import is_text
from ..reading.records import Document

LARGEST = 5_000  # jobs in a batch
LEASE, PAST = "lease", "past"
_CLAIMED, _RENEWED = f"{LEASE}/", "renewed/"
Move = tuple[Record | None, Record]  # how a job stood, and how it stands


def note(moves: Iterable[Move]) -> Steps[None]:
    """Note the leases that were given by some moves, and until when jobs are kept that ended."""
    batches: dict[tuple[str, int, int | None], list[str]] = {}
    for before, after in moves:
        if after.stamp is not None:
            if before is None or before.stamp != after.stamp:
                prefix = f"{_CLAIMED}{after.leased_by}/{after.stamp}/"
            elif before.leased_until != after.leased_until:
                prefix = _RENEWED
            else:
                continue
            until = after.leased_until or 0
            batches.setdefault((prefix, until, until - after.lease), []).append(after.id)
        elif (at := _kept_until(after)) is not None and (before is None or _kept_until(before) != at):
            batches.setdefault((f"{PAST}/", at, None), []).append(after.id)
    yield from insert(
        "batches",
        [
            _batch(*batch, ids[begin : begin + LARGEST])
            for batch, ids in batches.items()
            for begin in range(0, len(ids), LARGEST)
        ],
    )


def _kept_until(record: Record) -> int | None:
    return record.prune_at if record.stamp is None and record.state in FINAL else None


def _batch(prefix: str, at: int, given: int | None, ids: Sequence[str]) -> Document:
    kind = PAST if given is None else LEASE
    batch: Document = {"_id": f"{prefix}{ObjectId()}", "kind": kind, "at": at, "ids": list(ids)}
    return batch if given is None else batch | {"given": given}


# ---- leases ----------------------------------------------------------------------------------------
def leases(now: int, seen: Sequence[str], limit: int) -> Steps[list[Document]]:
    """Batches in which a lease may be over, or reach too far because the clock went back; the earliest first."""
    over: list[Document] = [{"kind": LEASE, "at": {"$lte": now}}, {"kind": LEASE, "given": {"$gt": now}}]
    unseen: Document = {"_id": {"$nin": list(seen)}} if seen else {}
    return (yield from find("batches", {"$or": over} | unseen, sort={"at": 1}, limit=limit))


def next_lease() -> Steps[int | None]:
    """When a lease may be over first."""
    found = yield from find("batches", {"kind": LEASE}, sort={"at": 1}, limit=1)
    return found[0]["at"] if found else None


def tidy(batches: Iterable[Document], held: dict[str, Record], now: int) -> Steps[None]:
    """Put batches of which no lease is over to when that may be, or away. Renewed leases stand in batches of their own."""
    gone: list[str] = []
    later: list[Document] = []
    for batch in batches:
        ours = [held[id] for id in batch["ids"] if id in held]
        if any((record.leased_until or 0) <= now for record in ours):
            continue
        claimed = [record for record in ours if _is_of(record, batch)]
        if claimed:
            rest: Document = {
                "at": min(record.leased_until or 0 for record in claimed),
                "given": max((record.leased_until or 0) - record.lease for record in claimed),
                "ids": [record.id for record in claimed],
            }
            later.append({"q": {"_id": batch["_id"]}, "u": {"$set": rest}})
        else:
            gone.append(batch["_id"])
    yield from update("batches", later)
    if gone:
        yield from delete("batches", {"_id": {"$in": gone}})


def _is_of(record: Record, batch: Document) -> bool:
    name: str = batch["_id"]
    return name.startswith(f"{_CLAIMED}{record.leased_by}/{record.stamp}/")


def claimed_by(worker: str, stamp: int) -> Steps[list[str]]:
    """The jobs that were claimed under a stamp, and perhaps some more."""
    return (yield from _ids_in(f"{_CLAIMED}{worker}/{stamp}/"))


def held() -> Steps[list[str]]:
    """Every job that is held, and those that were until some time ago."""
    return (yield from _ids_in(_CLAIMED))


def _ids_in(prefix: str) -> Steps[list[str]]:
    named: Document = {"$gte": prefix, "$lt": f"{prefix[:-1]}0"}  # which comes right after a slash
    found = yield from find("batches", {"_id": named}, {"_id": 0, "ids": 1})
    return list(dict.fromkeys(id for batch in found for id in batch["ids"]))


# ---- ended jobs ------------------------------------------------------------------------------------
def past(now: int, limit: int) -> Steps[dict[str, list[str]]]:
    """Jobs whose time may be over, the longest over first, and the batches in which each of them stands."""
    found = yield from aggregate(
        "batches",
        [
            {"$match": {"kind": PAST, "at": {"$lte": now}, "ids": {"$type": "array"}}},
            {"$sort": {"kind": 1, "at": 1}},
            {"$unwind": "$ids"},
            {"$limit": limit},
            {"$project": {"ids": 1}},
        ],
    )
    jobs: dict[str, list[str]] = {}
    for one in found:
        if is_text(one["ids"]) and is_text(one["_id"]):
            jobs.setdefault(one["ids"], []).append(one["_id"])
    return jobs


def done_with(jobs: dict[str, list[str]]) -> Steps[None]:
    """Take jobs off the batches in which they stand."""
    names = sorted({name for batches in jobs.values() for name in batches})
    if names:
        taken_off: Document = {"$pull": {"ids": {"$in": list(jobs)}}}
        lists: Document = {"_id": {"$in": names}, "ids": {"$type": "array"}}
        yield from update("batches", [{"q": lists, "u": taken_off, "multi": True}])
        yield from delete("batches", {"_id": {"$in": names}, "ids": []})


def put_off(ids: Sequence[str], until: int) -> Steps[None]:
    """Look at these ended jobs again at an instant."""
    yield from insert("batches", [_batch(f"{PAST}/", until, None, ids)])
