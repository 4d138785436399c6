"""Jobs as documents.

One document holds a job for its whole life. Its fields are those of `Record`; default values are left out. Texts stay
strings. `marks` are derived: what a job can be found by, each a letter and a text. They have the only index of the jobs
beside their ids: inside a transaction MongoDB looks up each index of a collection in its catalog for every document of
which it changes an indexed field, which costs several times as much as the write itself. Most jobs have only the first
mark, and it never changes.

    * every job · k key · c chain · d dead · q queue (scheduled or blocked) · x expiry (waiting, not started; twenty
    digits) · n task (ended, only so many are kept) · t tag

The position of a waiting job is a document of its own (`places`). When a lease ends, or a job may be removed, is stored for
whole batches (`batches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from json import loads
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from perdure.core.job import WAITING, State
from perdure.core.record import Record

Document = dict[str, Any]
T = TypeVar("T")

DUE = "due"
ALL = "*"  # the mark of every job
IN_A_LANE = {"$gte": "[", "$lt": "\\"}  # JSON arrays begin with a bracket, and \ comes right after it
AT_A_PLACE = {"$gte": "(", "$lt": "\\"}  # in a lane, or at a gate
DERIVED = ("marks",)
# fields that neither a guard nor a move looks at, left out where nobody asked for them
UNREAD = ("payload", "progress", "meta", "backoff", "retention", "dead_retention", "after", "timeout")
SLIM = dict.fromkeys((*UNREAD, *DERIVED), 0)
WHOLE = dict.fromkeys(DERIVED, 0)
SLIM_CHILD = {name: 0 for name in SLIM if name != "retention"}  # which says how long a cancelled one is kept

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(Record)
    if field.default is not msgspec.NODEFAULT
    and field.name != "min_version"  # whose default rises with the versions of Perdure
}
MAY_CHANGE = tuple(
    """
    state version attempt failures losses rank run_at started_at finished_at prune_at keep_last stamp accepted_stamp
    leased_by lease leased_until suspect parked hidden result progress errors reason holds_key waits followed next_id
    """.split()  # noqa: SIM905
)
_values = attrgetter(*MAY_CHANGE)


class Line(NamedTuple):
    """The ready jobs of one task and routing key in all queues. Suspects, and rows for newer versions, have their own."""

    task: str
    routing_key: str | None
    min_version: int
    suspect: int

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Lane(NamedTuple):
    """The ready jobs of one queue, task and routing key. Suspects, and rows for newer versions, have their own."""

    queue: str
    task: str
    routing_key: str | None
    min_version: int
    suspect: int

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def line(self) -> Line:
        return Line(*self[1:])


class GateLane(NamedTuple):
    """The parked jobs of one lane under the same limits. The queue comes first, so that the gates of a queue are
    neighbours."""

    queue: str
    limits: str
    task: str
    routing_key: str | None
    min_version: int
    suspect: int

    def text(self) -> str:
        return f"({msgspec.json.encode(self).decode()}"


_lane = msgspec.json.Decoder(Lane)
_line = msgspec.json.Decoder(Line)
_gate = msgspec.json.Decoder(GateLane)


def lane_of(place: str) -> Lane:
    return _lane.decode(place)


def known_lanes(places: Iterable[object]) -> list[Lane]:
    """The lanes of those places that are lanes."""
    return _known(_lane, places)


def known_lines(texts: Iterable[object]) -> list[Line]:
    """The lines of those texts that are lines."""
    return _known(_line, texts)


def _known(decoder: msgspec.json.Decoder[T], texts: Iterable[object]) -> list[T]:
    known = []
    for text in texts:
        try:
            known.append(decoder.decode(text))  # type: ignore[arg-type]
        except (msgspec.MsgspecError, TypeError, ValueError):
            continue
    return known


def is_gate(place: str) -> bool:
    try:
        gate_of(place)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


def gate_of(place: str) -> GateLane:
    return _gate.decode(place[1:])


def queue_of(place: str) -> str | None:
    """The queue of a lane or a gate; None for a text that is neither."""
    try:
        return gate_of(place).queue if place.startswith("(") else lane_of(place).queue
    except (msgspec.MsgspecError, ValueError):
        return None


def lanes_of_queue(queue: str) -> Document:
    """The condition for every lane of a queue: its text, then a comma (- is the character after the comma)."""
    begin = f"[{msgspec.json.encode(queue).decode()}"
    return {"$gte": f"{begin},", "$lt": f"{begin}-"}


def gates_of_queue(queue: str) -> Document:
    lanes = lanes_of_queue(queue)
    return {operator: f"({text}" for operator, text in lanes.items()}


# ---- records to documents --------------------------------------------------------------------------
def document_of(record: Record) -> Document:
    """The document of a new job."""
    document = {name: value for name in Record.__struct_fields__ if _is_stored(name, value := getattr(record, name))}
    document["_id"] = document.pop("id")
    document["marks"] = marks_of(record)
    return document


def update_of(before: Record, after: Record) -> Document:
    """The update that turns a job's document from one record into the other."""
    written: Document = {}
    removed: Document = {}
    for name, was, value in zip(MAY_CHANGE, _values(before), _values(after), strict=True):
        if value != was:
            if _is_stored(name, value):
                written[name] = value
            else:
                removed[name] = ""
    if (marks := marks_of(after)) != marks_of(before):
        written["marks"] = marks
    return {name: part for name, part in (("$set", written), ("$unset", removed)) if part}


def _is_stored(name: str, value: object) -> bool:
    return name not in _DEFAULTS or value != _DEFAULTS[name]


def has_place(record: Record) -> bool:
    return record.stamp is None and record.state in (State.READY, State.SCHEDULED)


def place_of(record: Record) -> Document | None:
    """The position of a waiting job: in its lane, at its gate, or among the scheduled jobs. A blocked job has none.

    ready, in a lane    place = JSON [queue, task, routing key, min_version, suspect]   order = -priority   tie = rank
    parked, at a gate   place = "(" and JSON [queue, limits, task …]                    order = -priority   tie = rank
    scheduled           place = "due"                                                   order = run_at

    A job in a lane has its line too: JSON [task, routing key, min_version, suspect], the same in all queues. A job that
    expires and has not started has `expires_at`; a job with a share of a fair queue has `run_at`.
    """
    if not has_place(record):
        return None
    if record.state is State.SCHEDULED:
        return {"_id": record.id, "place": DUE, "order": record.run_at}
    place: Document = {
        "_id": record.id,
        "place": position_text(record),
        "order": -record.priority,
        "tie": record.rank,
    }
    if not place["place"].startswith("("):
        place["line"] = _line_text(record.task, record.routing_key, record.min_version, int(record.suspect))
    if record.expires_at is not None and record.started_at is None:
        place["expires_at"] = record.expires_at
    if record.rank != record.run_at:
        place["run_at"] = record.run_at
    return place


def position_text(record: Record) -> str:
    """The lane of a ready job, or the gate of a parked one."""
    limits = record.limits if record.parked else None
    return _place_text(limits, record.queue, record.task, record.routing_key, record.min_version, int(record.suspect))


@lru_cache(1024)
def _place_text(limits: str | None, *lane: Any) -> str:
    return Lane(*lane).text() if limits is None else GateLane(lane[0], limits, *lane[1:]).text()


@lru_cache(1024)
def _line_text(*line: Any) -> str:
    return Line(*line).text()


def marks_of(record: Record) -> list[str]:
    """What a job can be found by."""
    marks = [ALL]
    if record.key is not None:
        marks.append(f"k{record.key}")
    if record.chain_id is not None:
        marks.append(f"c{record.chain_id}")
    if record.tags is not None:
        marks += [f"t{tag}" for tag in _tags(record.tags)]
    if record.state in WAITING:
        if not has_place(record) or record.state is State.SCHEDULED:
            marks.append(f"q{record.queue}")
        if record.expires_at is not None and record.started_at is None:
            marks.append(expiry_mark(record.expires_at))
    else:
        if record.state is State.DEAD:
            marks.append("d")
        if record.keep_last is not None:
            marks.append(f"n{record.task}")
    return marks


def expiry_mark(instant: int) -> str:
    """A mark that sorts as the instants do."""
    return f"x{max(instant, 0):020d}"


def _tags(text: str) -> Iterable[str]:
    """The texts in a JSON array. Anything else has no tags."""
    try:
        tags = loads(text)
    except ValueError:
        return ()
    found = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return [tag for tag in dict.fromkeys(found) if not any("\ud800" <= char <= "\udfff" for char in tag)]


# ---- documents to records --------------------------------------------------------------------------
def record_from(document: Mapping[str, Any]) -> Record:
    """The record in a document. Fields that were not read are empty; msgspec converts numbers and states."""
    fields = {"payload": "", "backoff": "", "retention": "", "dead_retention": "", "timeout": None, **document}
    fields["id"] = fields.pop("_id")
    return msgspec.convert(fields, Record)
