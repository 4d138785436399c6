"""The differences that moves make, as statements: jobs that make the same move are one.

Hundreds of jobs are claimed, or end, in the same way. So two moves are compared as a whole, by all that may have changed at
once, and only the first of each kind is taken apart field by field. When a job began is its own: of moves that differ in
nothing else it is looked up by the job's id.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from perdure.job import Record

from .documents import MAY_CHANGE, Document, update_of
from .steps import STARTED_AT, gathered, statement

_OWN = ("rank", "run_at", STARTED_AT)  # of which nearly every job has another value, and nearly no move writes it
_common = attrgetter(*(name for name in MAY_CHANGE if name not in _OWN))
Move = tuple[Record, Record]  # how a job stood, and how it stands


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
    return statements + gathered({after.id: update_of(before, after) for before, after in single})
