"""Runs an exchange: applies changes, notes started handlers, and claims jobs, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.storage.contract import Claim, MissingParent, Started, Verdict

from ..claiming.claim import Claimed, claim_jobs
from ..connection.work import Work
from ..edges.resolve_edges import any_unresolved, resolve_edges
from .apply import PreparedChanges, apply, missing_parent_of
from .holds import note_started


class Exchanged(NamedTuple):
    """The answer of the writer's thread. The event loop makes records of the claimed rows."""

    verdicts: list[Verdict]
    claimed: Claimed


def exchange(
    work: Work, changes: PreparedChanges, claim: Claim | None, started: Sequence[Started], now: int, chunk: int
) -> Exchanged | MissingParent:
    """Exchange. A refusal is returned, not raised, because nothing has been written when it is found."""
    refusal = missing_parent_of(work, changes.adds) if changes.adds else None
    if refusal is not None:
        return refusal
    verdicts = apply(work, changes, now)
    note_started(work, started)
    if claim is not None:
        return Exchanged(verdicts, claim_jobs(work, claim, now, chunk))
    unresolved = any_unresolved(work)
    if unresolved:
        resolve_edges(work, chunk, now)
        unresolved = any_unresolved(work)
    return Exchanged(verdicts, Claimed([], None, False, unresolved))
