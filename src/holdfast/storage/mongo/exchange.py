"""The exchange: apply, note the started, claim, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.lifecycle import Change
from holdfast.storage.contract import Claim, Exchanged, Started

from .apply import apply, note_started
from .claim import Choice
from .claim import claim as claim_jobs
from .steps import Steps


class Told(NamedTuple):
    """An answer, and what listeners are to hear of it."""

    exchanged: Exchanged
    ready: set[str]
    changed: bool


def exchange(
    changes: Sequence[Change],
    claim: Claim | None,
    started: Sequence[Started],
    now: int,
    chunk: int,
    choice: Choice,
) -> Steps[Told]:
    applied = yield from apply(changes, now)
    if started:
        yield from note_started(started)
    if claim is None:
        return Told(Exchanged(applied.verdicts), applied.ready, applied.changed)
    claimed = yield from claim_jobs(claim, now, chunk, choice)
    exchanged = Exchanged(applied.verdicts, claimed.records, claimed.next_due, claimed.suspects)
    return Told(exchanged, applied.ready | claimed.ready, applied.changed)
