"""Rows as moves look at them, and the difference that a move makes, written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy

from perdure.job import Record, State

from . import batches, places, slots, unreadable
from .differences import Move, differences
from .documents import SLIM, WHOLE, Document, document_of
from .holders import hand_over, take
from .steps import Steps, find, insert, update

AT_ONCE = 20_000  # ids in one question
UNKNOWN = -1  # an instant at which no lease ends


def look(ids: Collection[str], projection: Document = SLIM, *, now: int | None = None) -> Steps[dict[str, Record]]:
    """The rows of these jobs, as far as guards and moves look at them. One that cannot be read is set aside `now`, and what
    stands for it is given; without a time it is left out."""
    if not ids:
        return {}
    found = yield from find("jobs", {"_id": {"$in": list(ids)}}, projection)
    records, bad = unreadable.read(found, whole=projection is WHOLE)
    rows = {record.id: record for record in records}
    if bad and now is not None:
        rows |= yield from unreadable.set_aside(bad, now)
    return rows


def on_record(ids: Sequence[str]) -> Steps[set[str]]:
    """Which of these jobs are there; there may be very many."""
    return (yield from _there(ids, {}))


def followable(ids: Sequence[str]) -> Steps[set[str]]:
    """The same, without those that were deleted before they were done."""
    done = [State.SUCCEEDED.value, State.SKIPPED.value]
    return (yield from _there(ids, {"$or": [{"hidden": {"$ne": True}}, {"state": {"$in": done}}]}))


def _there(ids: Sequence[str], condition: Document) -> Steps[set[str]]:
    known: set[str] = set()
    for begin in range(0, len(ids), AT_ONCE):
        found = yield from find("jobs", {"_id": {"$in": ids[begin : begin + AT_ONCE]}, **condition}, {"_id": 1})
        known |= {document["_id"] for document in found}
    return known


def as_claimed(record: Record) -> Record:
    """What of a claimed job's row is sure as long as its hold and its version stand. Its lease may be renewed; long texts
    are not needed, because a move writes a new one or leaves it."""
    known = copy(record)
    known.leased_until = UNKNOWN
    known.payload = ""
    known.meta = known.progress = known.errors = None
    return known


class Outdated(Exception):
    """A row that was written without being read is not as it was taken for."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__()
        self.ids = ids


def write(before: Mapping[str, Record], moved: Sequence[Record], unread: Collection[str] = ()) -> Steps[None]:
    """The difference that moves have made, and what becomes of places, leases, limits and keys by them. `unread` rows are
    written if they are as the claim has left them, else `Outdated`."""
    moves = [(before[row.id], row) for row in moved]
    if unread:
        yield from update("jobs", differences(move for move in moves if move[1].id not in unread))
        yield from _write_unread([move for move in moves if move[1].id in unread])
    else:
        yield from update("jobs", differences(moves))
    yield from places.move(moves)
    yield from batches.note(moves)
    yield from slots.move(moves)
    yield from hand_over(moves)


def enter(records: Sequence[Record]) -> Steps[None]:
    """Put new rows on record, with what belongs to them."""
    yield from insert("jobs", [document_of(record) for record in records])
    yield from places.enter(records)
    yield from batches.note((None, record) for record in records)
    yield from slots.move((None, record) for record in records)
    yield from take(records)


def _write_unread(moves: Sequence[Move]) -> Steps[None]:
    """Every move but a renewal, a note of the start or of progress raises the version; a follower is not one."""
    claims: dict[tuple[int | None, int], list[Move]] = {}
    for move in moves:
        claims.setdefault((move[0].stamp, move[0].version), []).append(move)
    statements = []
    for (stamp, version), alike in claims.items():
        as_claimed = {"state": State.RUNNING.value, "stamp": stamp, "version": version, "followed": None}
        statements += [{**each, "q": each["q"] | as_claimed} for each in differences(alike)]
    if (yield from update("jobs", statements)) != len(moves):
        raise Outdated([was.id for was, _ in moves])
