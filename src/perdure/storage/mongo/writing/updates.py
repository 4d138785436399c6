"""Reads the rows of jobs that change, and writes the differences.

Hundreds of jobs are claimed or end alike, and equal changes share one statement. So two changes are compared as a whole,
and only the first of each kind is compared field by field. Each job has its own start time: for changes that differ in
nothing else, the statement finds it by the id of the job.
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
    """The statements that turn every job's document into that of its second record."""
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
    """Read the fields that guards and changes need, by job id. With `now`, an unreadable job is set aside and its
    replacement returned; without, it is left out."""
    if not ids:
        return {}
    found = yield from find("jobs", {"_id": {"$in": list(ids)}}, projection)
    records, bad = unreadable.read(found, whole=projection is WHOLE)
    rows = {record.id: record for record in records}
    if bad and now is not None:
        rows |= yield from unreadable.set_aside(bad, now)
    return rows


def find_known(ids: Sequence[str]) -> Steps[set[str]]:
    """Which of these jobs are stored. There may be very many."""
    return (yield from _there(ids, {}))


def find_followable(ids: Sequence[str]) -> Steps[set[str]]:
    """The same, without jobs that were deleted before they succeeded."""
    done = [State.SUCCEEDED.value, State.SKIPPED.value]
    return (yield from _there(ids, {"$or": [{"hidden": {"$ne": True}}, {"state": {"$in": done}}]}))


def _there(ids: Sequence[str], condition: Document) -> Steps[set[str]]:
    known: set[str] = set()
    for begin in range(0, len(ids), AT_ONCE):
        found = yield from find("jobs", {"_id": {"$in": ids[begin : begin + AT_ONCE]}, **condition}, {"_id": 1})
        known |= {document["_id"] for document in found}
    return known


def write(before: Mapping[str, Record], moved: Sequence[Record], unread: Collection[str] = ()) -> Steps[None]:
    """Write the differences, and what they mean for places, leases, limits and keys. Raises `Outdated` if one of the
    `unread` rows is not as its claim left it."""
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
    """Insert new jobs with their places, leases, counts and keys."""
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
