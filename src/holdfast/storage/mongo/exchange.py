"""The exchange: apply, note the started, claim, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.lifecycle import Change
from holdfast.storage.contract import Claim, Exchanged, Started

from .apply import apply, note_started
from .claim import Choice
from .claim import claim as claim_jobs
from .settling import Way, settled
from .steps import Steps


class Told(NamedTuple):
    """An answer, and what listeners are to hear of it."""

    exchanged: Exchanged
    ready: set[str]
    changed: bool
    left: list[str]  # entries on the list for `settle`


def exchange(
    changes: Sequence[Change],
    claim: Claim | None,
    started: Sequence[Started],
    now: int,
    chunk: int,
    choice: Choice,
    way: Way,
) -> Steps[Told]:
    applied = yield from apply(changes, now, way)
    if started:
        yield from note_started(started)
    followed = yield from settled(applied.parents, way, chunk, now, applied.written)
    left = applied.left + followed.left
    ready, changed = applied.ready | followed.ready, applied.changed or followed.changed
    if claim is None:
        return Told(Exchanged(applied.verdicts, unsettled=bool(left)), ready, changed, left)
    claimed = yield from claim_jobs(claim, now, chunk, choice)
    exchanged = Exchanged(applied.verdicts, claimed.records, claimed.next_due, claimed.suspects, bool(left))
    return Told(exchanged, ready | claimed.ready, changed, left)
