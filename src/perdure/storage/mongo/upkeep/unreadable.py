"""Documents that cannot be read: set aside, shown in listings, and kept as they were found.

Whoever reads jobs in a transaction sets those aside that cannot be read, in the same transaction: the document is replaced
by that of the record which `storage.rules.unreadable.mend` makes of it, it leaves its place, its key and its slot, and what
was found is kept in the collection `unreadable`. What is no job of ours at all is moved there alone. Documents beside the
jobs have shapes (see `shapes`); upkeep moves those that have another one, and makes again what can be made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from bson import ObjectId
from bson.binary import Binary
from bson.int64 import Int64

from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.job import State
from perdure.core.record import Record
from perdure.core.retention import DEFAULT_RETENTION
from perdure.storage.contract import Unreadable
from perdure.storage.rules.limits import keys_of
from perdure.storage.rules.unreadable import Mended, flaw_of, kept_entry, log_set_aside, mark, mend, raw_text

from ..claiming.claim_positions import forget
from ..connection.operations import Steps, delete, find, update
from ..limits import running_counts
from ..reading.document_shapes import is_text
from ..reading.records import DERIVED, Document, document_of, record_from
from ..writing.small_documents import WAKEUP, add, kind

OURS = (*DERIVED, "touched", "pins")  # fields of a document that are none of a record's
_UNASKED = {
    "backoff": DEFAULT_BACKOFF.text(),
    "retention": DEFAULT_RETENTION.text(),
    "dead_retention": DEFAULT_RETENTION.text(),
}
_unreadable = msgspec.json.Decoder(Unreadable)


class Read(NamedTuple):
    """The records in some documents, and the documents that make none."""

    records: list[Record]
    bad: list[Document]


def read(documents: Iterable[Document], *, whole: bool = True) -> Read:
    """`whole`: the documents have all their fields but, perhaps, the payload. Others lack those that no move looks at."""
    records: list[Record] = []
    bad: list[Document] = []
    for document in documents:
        try:
            record = record_from(document)
        except (ValueError, KeyError, OverflowError):
            bad.append(document)
            continue
        if not whole:
            _fill(record, document)
        if flaw_of(record) is None and is_text(record.payload):
            records.append(record)
        else:
            bad.append(document)
    return Read(records, bad)


def _fill(record: Record, document: Document) -> None:
    """Let fields that were not asked for be readable."""
    for name, text in _UNASKED.items():
        if name not in document:
            setattr(record, name, text)


def shown(documents: Iterable[Document], now: int) -> list[Record]:
    """The records for a reader, in the order of the documents. One that cannot be read is marked."""
    return [record for document in documents if (record := _shown(document, now)) is not None]


def _shown(document: Document, now: int) -> Record | None:
    records, bad = read([document])
    if records:
        return records[0]
    record = mark(_values_of(bad[0]), now)
    if isinstance(document.get("created_at"), int) and not isinstance(document.get("created_at"), bool):
        record.created_at = int(document["created_at"])  # where it stands in the listing
    return record if record.id else None


# ---- setting aside ---------------------------------------------------------------------------------
def set_aside(documents: Sequence[Document], now: int) -> Steps[dict[str, Record]]:
    """Set jobs aside; gives what stands for them, by id. The documents need not be whole."""
    ids = [document["_id"] for document in documents if has_name(document)]
    if not ids:
        return {}
    found = yield from find("jobs", {"_id": {"$in": ids}})
    made = [(document, _mend(document, now)) for document in found]
    made = [(document, mended) for document, mended in made if mended.fields]
    yield from update("jobs", [_replacement(document, mended) for document, mended in made if mended.record.id])
    if foreign := [document["_id"] for document, mended in made if not mended.record.id]:
        yield from delete("jobs", {"_id": {"$in": foreign}})
    yield from _keep([_kept(document["_id"], "jobs", mended.fields, document, now) for document, mended in made])
    yield from _leave_indexes([document for document, _ in made])
    for document, mended in made:
        log_set_aside("job", str(document["_id"]), mended.fields)
    return {mended.record.id: mended.record for _, mended in made if mended.record.id}


def _replacement(document: Document, mended: Mended) -> Document:
    return {"q": {"_id": document["_id"]}, "u": document_of(mended.record)}


def _leave_indexes(documents: Sequence[Document]) -> Steps[None]:
    """Give up places, keys, slots and edges."""
    ids = [document["_id"] for document in documents if is_text(document["_id"])]
    if not ids:
        return
    yield from forget(ids)
    yield from delete("notes", {"_id": kind("holder"), "job": {"$in": ids}})
    held = [each["limits"] for each in documents if each.get("stamp") is not None and is_text(each.get("limits"))]
    yield from running_counts.note({limits: -jobs for limits, jobs in Counter(held).items()})
    yield from add(WAKEUP, [{"key": key} for key in keys_of(held)])
    edges = yield from find("edges", {"$or": [{"child": {"$in": ids}}, {"parent": {"$in": ids}}], "open": True})
    waiting, followed = {edge["child"] for edge in edges}, {edge["parent"] for edge in edges}
    yield from add("unresolved", [{"job": id, "what": "loose"} for id in ids if id in waiting])
    yield from add("unresolved", [{"job": id, "what": "edges"} for id in ids if id in followed])


def _mend(document: Mapping[str, Any], now: int) -> Mended:
    return mend(_values_of(document), now)


def _values_of(document: Mapping[str, Any]) -> dict[str, object]:
    """The fields of a record in a document."""
    values = {name: _plain(value) for name, value in document.items() if name not in OURS}
    values["id"] = values.pop("_id", None)
    return values


def _plain(value: object) -> object:
    """A value as a record may have it. Bytes for a text that is no UTF-8."""
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, float) and abs(value) < 1e18 and value == int(value):
        return int(value)
    if isinstance(value, str) and not is_text(value):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, Binary):
        return {"binary": bytes(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def has_name(document: Document) -> bool:
    """Whether a document can be found by its id: the driver writes no text that is not UTF-8."""
    id = document["_id"]
    if isinstance(id, dict):
        return all(is_text(each) for each in id.values() if isinstance(each, str))
    return not isinstance(id, str) or is_text(id)


# ---- what is kept ----------------------------------------------------------------------------------
def _kept(id: object, where: str, fields: Sequence[str], document: Mapping[str, Any], now: int) -> Unreadable:
    raw = raw_text({name: _plain(value) for name, value in document.items()})
    name = id if isinstance(id, str) else raw_text({"_id": _plain(id)})
    return Unreadable(name, now, where, tuple(fields), raw)


def _keep(rows: Sequence[Unreadable]) -> Steps[None]:
    yield from update(
        "unreadable",
        [
            {
                "q": {"_id": f"{row.where}/{row.id}"},
                "u": {"job": row.id, "at": row.at, "text": msgspec.json.encode(row).decode()},
                "upsert": True,
            }
            for row in rows
        ],
    )


def list_unreadable(ids: Sequence[str] | None, limit: int) -> Steps[list[Unreadable]]:
    """What was set aside, the oldest first."""
    wanted: Document = {} if ids is None else {"_id": {"$in": [f"jobs/{id}" for id in ids]}}
    found = yield from find("unreadable", wanted, sort={"at": 1, "_id": 1}, limit=limit)
    return [_entry_of(document) for document in found]


def _entry_of(document: Document) -> Unreadable:
    damaged = _kept(document.get("_id"), "unreadable", (), document, 0)
    return kept_entry(lambda: _unreadable.decode(document["text"]), damaged.id, msgspec.json.decode(damaged.raw))


def forget_kept(ids: Sequence[str]) -> Steps[None]:
    """Forget what was kept of jobs that are removed."""
    yield from delete("unreadable", {"_id": {"$in": [f"jobs/{id}" for id in ids]}})


# ---- reading in a transaction ----------------------------------------------------------------------
def readable(documents: Sequence[Document], now: int, *, whole: bool = True) -> Steps[list[Record]]:
    """The records in some documents; those that make none are set aside."""
    records, bad = read(documents, whole=whole)
    if bad:
        yield from set_aside(bad, now)
    return records


def is_leased(document: Mapping[str, Any], now: int) -> bool:
    """Whether a job runs under a lease that is not over: it is left to its holder."""
    until, lease = document.get("leased_until"), document.get("lease")
    if document.get("state") != State.RUNNING.value or not isinstance(until, int) or not isinstance(lease, int):
        return False
    return now < until <= now + lease


def move_aside(collection: str, documents: Sequence[tuple[Document, Sequence[str]]], now: int) -> Steps[None]:
    """Move documents that are no jobs out of their collection."""
    rows = [_kept(document["_id"], collection, fields, document, now) for document, fields in documents]
    yield from _keep([row if is_text(row.id) else row.__class__(str(ObjectId()), *_rest(row)) for row in rows])
    if ids := [document["_id"] for document, _ in documents if has_name(document)]:
        yield from delete(collection, {"_id": {"$in": ids}})
    for row in rows:
        log_set_aside(collection, row.id, row.fields)


def _rest(row: Unreadable) -> tuple[int, str, tuple[str, ...], str]:
    return row.at, row.where, row.fields, row.raw
