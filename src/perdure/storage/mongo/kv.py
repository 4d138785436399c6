"""kv entries: named texts. Each is one document whose id is its kind and name.

A write reads the entries in its transaction and decides in Python, as with jobs; another writer is a conflict. A hold that
guards a write is pinned by a write to its job, so that no other transaction ends it before the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bson import ObjectId
from bson.max_key import MaxKey
from bson.min_key import MinKey

from perdure.core.record import Hold
from perdure.storage.contract import ACCEPTED, KvEntry, KvWrite
from perdure.storage.rules.guards import check_hold

from .connection.operations import Steps, delete, find, update
from .edges.resolve_edges import EdgeResolution
from .reading.records import Document
from .writing.enqueue import Enqueued, enqueue
from .writing.updates import read_rows

Name = tuple[str, str]  # kind, name


def read(
    kind: str, names: Sequence[str] | None, job: str | None, due_by: int | None, limit: int
) -> Steps[list[KvEntry]]:
    of_job: Document = {} if job is None else {"job": job}
    if names is not None:
        wanted: Document = {"_id": {"$in": [_id(kind, name) for name in names]}}
        return _rows((yield from find("kv", wanted | of_job, sort={"_id": 1})))
    if limit <= 0:
        return []
    if due_by is not None:
        due: Document = {"_id.kind": kind, "due_at": {"$lte": due_by}}
        return _rows((yield from find("kv", due | of_job, sort={"due_at": 1, "_id.name": 1}, limit=limit)))
    ours: Document = {"_id.kind": kind} if of_job else {"_id": {"$gt": _id(kind, MinKey()), "$lt": _id(kind, MaxKey())}}
    return _rows((yield from find("kv", ours | of_job, sort={"_id": 1}, limit=limit)))


def write(
    writes: Sequence[KvWrite], pinned: Collection[str], now: int, chunk: int, resolution: EdgeResolution
) -> Steps[tuple[list[bool], Enqueued]]:
    """Write the entries whose guards hold, with their jobs."""
    done = yield from _write_entries(writes, pinned)
    jobs = [job for write, holds in zip(writes, done, strict=True) if holds for job in write.jobs]
    return done, (yield from enqueue(jobs, now, chunk, resolution))


def answer_if_written(writes: Sequence[KvWrite]) -> Steps[tuple[list[bool], Enqueued] | None]:
    """The answer to `kv_write` if everything was written, else None: then it may be written again."""
    rows = yield from _read_entries({(write.kind, write.name) for write in writes})
    for write in writes:
        row = rows.get((write.kind, write.name))
        if write.version is None or (None if row is None else row.text) != write.text:
            return None
        if row is not None and row.version != write.version + 1:
            return None
    queues = {job.queue for write in writes for job in write.jobs}
    return [True] * len(writes), Enqueued([], queues, [], [], False)


def _write_entries(writes: Sequence[KvWrite], pinned: Collection[str]) -> Steps[list[bool]]:
    """Write the entries whose guards hold, in list order; returns which did. A transaction has pinned the jobs in `pinned`
    already."""
    valid_holds = yield from _pin_holds(writes, pinned)
    rows = yield from _read_entries({(write.kind, write.name) for write in writes})
    before = dict(rows)
    done = [_write_one(rows, write, valid_holds) for write in writes]
    yield from _store(before, rows)
    return done


def forget(jobs: Sequence[str]) -> Steps[None]:
    """Remove the entries of these jobs."""
    yield from delete("kv", {"job": {"$in": list(jobs)}})


# ---- moving house ----------------------------------------------------------------------------------
def export(after: Name | None, limit: int) -> Steps[list[KvEntry]]:
    behind: Document = {} if after is None else {"_id": {"$gt": _id(*after)}}
    return _rows((yield from find("kv", behind, sort={"_id": 1}, limit=limit))) if limit > 0 else []


def restore(rows: Sequence[KvEntry]) -> Steps[None]:
    yield from _put({(row.kind, row.name): row for row in rows}.values())


# ---- below -----------------------------------------------------------------------------------------
def _id(kind: str, name: object) -> Document:
    return {"kind": kind, "name": name}


def _rows(documents: Iterable[Document]) -> list[KvEntry]:
    return [_row(document) for document in documents]


def _row(document: Document) -> KvEntry:
    due_at = document.get("due_at")
    return KvEntry(
        kind=document["_id"]["kind"],
        name=document["_id"]["name"],
        text=document["text"],
        version=int(document["version"]),
        due_at=None if due_at is None else int(due_at),
        job=document.get("job"),
    )


def _read_entries(names: Collection[Name]) -> Steps[dict[Name, KvEntry]]:
    found = yield from find("kv", {"_id": {"$in": [_id(*name) for name in names]}})
    return {(row.kind, row.name): row for row in _rows(found)}


def _pin_holds(writes: Sequence[KvWrite], pinned: Collection[str]) -> Steps[set[Hold]]:
    holds = {write.hold for write in writes if write.hold is not None}
    jobs = yield from read_rows({hold.id for hold in holds})
    stand = {hold for hold in holds if check_hold(jobs.get(hold.id), hold) is ACCEPTED}
    if free := sorted({hold.id for hold in stand} - set(pinned)):
        yield from update("jobs", [{"q": {"_id": {"$in": free}}, "u": {"$set": {"pins": ObjectId()}}, "multi": True}])
    return stand


def _write_one(rows: dict[Name, KvEntry], write: KvWrite, holds: Collection[Hold]) -> bool:
    name = (write.kind, write.name)
    version = rows[name].version if name in rows else 0
    if write.version not in (None, version) or (write.hold is not None and write.hold not in holds):
        return False
    if write.text is None:
        rows.pop(name, None)
    else:
        rows[name] = KvEntry(*name, write.text, version + 1, write.due_at, write.job)
    return True


def _store(before: dict[Name, KvEntry], after: dict[Name, KvEntry]) -> Steps[None]:
    if gone := [_id(*name) for name in sorted(before) if name not in after]:
        yield from delete("kv", {"_id": {"$in": gone}})
    yield from _put(row for name, row in sorted(after.items()) if before.get(name) != row)


def _put(rows: Iterable[KvEntry]) -> Steps[None]:
    yield from update(
        "kv", [{"q": {"_id": _id(row.kind, row.name)}, "u": _document(row), "upsert": True} for row in rows]
    )


def _document(row: KvEntry) -> Document:
    document: Document = {"text": row.text, "version": row.version}
    if row.due_at is not None:
        document["due_at"] = row.due_at
    return document if row.job is None else {**document, "job": row.job}
