"""Read the rows of jobs that move, and write the differences that the moves make.

Hundreds of jobs are claimed, or end, in the same way, and jobs that make the same move share one statement. So two moves
are compared as a whole, and only the first of each kind is taken apart field by field. Each job has its own start time: for
moves that differ in nothing else, the statement looks it up by the job's id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from perdure.core.job import State
from perdure.core.record import Record

from ..claiming import claim_positions
from ..connection.operations import STARTED_AT, Steps, find, group_by_update, insert, statement, update
from ..limits import running_counts
from ..reading.records import MAY_CHANGE, SLIM, WHOLE, Document, document_of, update_of
from ..upkeep import lease_batches, unreadable
from .fast_apply import Outdated, condition_for
from .unique_keys import take, write_key_changes

_OWN = ("rank", "run_at", STARTED_AT)  # of which nearly every job has another value, and nearly no move writes it
_common = attrgetter(*(name for name in MAY_CHANGE if name not in _OWN))
Move = tuple[Record, Record]  # how a job stood, and how it stands
AT_ONCE = 20_000  # ids in one question


def differences(moves: Iterable[Move]) -> list[Document]:
    """The statements that make every job's document that of its second record."""
    kinds: dict[object, list[Move]] = {}
    single: list[Move] = []
    for move in moves:
        before, after = move
        if before.rank != after.rank or before.run_at != after.run_at or after.expires_at is not None:
            single.append(move)
        else:
            started = None if before.started_at == after.started_at else after.started_at is not None
            kinds.setdefault((started, _common(before), _common(after)), []).append(move)
    statements: list[Document] = []
    for alike in kinds.values():
        update = update_of(*alike[0])
        if "marks" in update.get("$set", ()):  # which tell of more than what changes
            single += alike
        else:
            begins = STARTED_AT in update.get("$set", ())
            starts = {after.id: after.started_at if begins else None for _, after in alike}
            statements.append(statement(update, starts))
    return statements + group_by_update({after.id: update_of(before, after) for before, after in single})


def read_rows(ids: Collection[str], projection: Document = SLIM, *, now: int | None = None) -> Steps[dict[str, Record]]:
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


def find_known(ids: Sequence[str]) -> Steps[set[str]]:
    """Which of these jobs are there; there may be very many."""
    return (yield from _there(ids, {}))


def find_followable(ids: Sequence[str]) -> Steps[set[str]]:
    """The same, without those that were deleted before they were done."""
    done = [State.SUCCEEDED.value, State.SKIPPED.value]
    return (yield from _there(ids, {"$or": [{"hidden": {"$ne": True}}, {"state": {"$in": done}}]}))


def _there(ids: Sequence[str], condition: Document) -> Steps[set[str]]:
    known: set[str] = set()
    for begin in range(0, len(ids), AT_ONCE):
        found = yield from find("jobs", {"_id": {"$in": ids[begin : begin + AT_ONCE]}, **condition}, {"_id": 1})
        known |= {document["_id"] for document in found}
    return known


def write(before: Mapping[str, Record], moved: Sequence[Record], unread: Collection[str] = ()) -> Steps[None]:
    """The difference that moves have made, and what becomes of places, leases, limits and keys by them. `unread` rows are
    written if they are as the claim has left them, else `Outdated`."""
    moves = [(before[row.id], row) for row in moved]
    if unread:
        yield from update("jobs", differences(move for move in moves if move[1].id not in unread))
        yield from _write_unread([move for move in moves if move[1].id in unread])
    else:
        yield from update("jobs", differences(moves))
    yield from claim_positions.move(moves)
    yield from lease_batches.note(moves)
    yield from running_counts.move(moves)
    yield from write_key_changes(moves)


def insert_jobs(records: Sequence[Record]) -> Steps[None]:
    """Put new rows on record, with what belongs to them."""
    yield from insert("jobs", [document_of(record) for record in records])
    yield from claim_positions.enter(records)
    yield from lease_batches.note((None, record) for record in records)
    yield from running_counts.move((None, record) for record in records)
    yield from take(records)


def _write_unread(moves: Sequence[Move]) -> Steps[None]:
    """Write the rows that are still as their claims left them; `Outdated` if one is not."""
    claims: dict[tuple[int | None, int], list[Move]] = {}
    for move in moves:
        claims.setdefault((move[0].stamp, move[0].version), []).append(move)
    statements = []
    for alike in claims.values():
        condition = condition_for(alike[0][0])
        statements += [{**each, "q": each["q"] | condition} for each in differences(alike)]
    if (yield from update("jobs", statements)) != len(moves):
        raise Outdated([was.id for was, _ in moves])
