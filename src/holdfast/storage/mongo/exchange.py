"""The exchange: apply, note the started, claim, in one transaction; and how claimers keep out of each other's way.

Two claimers that read the same heads of lanes write the same documents, and the second is aborted: everybody gets on, but
work is thrown away, the more the more claimers there are. So whoever has met a conflict takes turns for a while: the first
write of its exchange is to one small document, so that a claimer who comes second is turned away before it has done
anything. A lone claimer never pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from holdfast.lifecycle import Change
from holdfast.storage.contract import Claim, Exchanged, Started

from .apply import apply, note_started
from .claim import claim as claim_jobs
from .steps import Steps, update

TAKE_TURNS = 2.0  # seconds after a conflict


class Told(NamedTuple):
    """An answer, and what listeners are to hear of it."""

    exchanged: Exchanged
    ready: set[str]
    changed: bool


class Turns:
    """Whether this claimer takes turns with others."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def needed(self) -> bool:
        return monotonic() < self._until

    def conflict(self) -> None:
        self._until = monotonic() + TAKE_TURNS


def exchange(
    changes: Sequence[Change], claim: Claim | None, started: Sequence[Started], now: int, chunk: int, *, turn: bool
) -> Steps[Told]:
    if turn and claim is not None:
        yield from _take_turn()
    applied = yield from apply(changes, now)
    if started:
        yield from note_started(started)
    if claim is None:
        return Told(Exchanged(applied.verdicts), applied.ready, applied.changed)
    claimed = yield from claim_jobs(claim, now, chunk)
    exchanged = Exchanged(applied.verdicts, claimed.records, claimed.next_due, claimed.suspects)
    return Told(exchanged, applied.ready | claimed.ready, applied.changed)


def _take_turn() -> Steps[None]:
    yield from update("meta", [{"q": {"_id": "turn"}, "u": {"$inc": {"turns": 1}}, "upsert": True}])
