"""How a guard meets a row: one rule for every store that looks at rows in Python."""

from __future__ import annotations

from typing import Protocol

from ...core.job import FINAL, State
from ...core.lifecycle import Change, HoldGuard
from ...core.record import Hold
from ..contract import ACCEPTED, REFUSED, REPEATED, Refusal, Verdict


class Guarded(Protocol):
    """What guards look at."""

    state: State
    version: int
    attempt: int
    stamp: int | None
    accepted_stamp: int | None
    hidden: bool
    leased_until: int | None


def is_held(row: Guarded, attempt: int, stamp: int, *, ended: bool = False) -> bool:
    """Whether the row runs under this hold; with `ended`, whether it was ended from outside and still carries it."""
    state_fits = row.state in FINAL if ended else row.state is State.RUNNING
    return state_fits and row.attempt == attempt and row.stamp == stamp


def check_hold(row: Guarded | None, hold: Hold) -> Verdict:
    """Whether a hold stands, and why not."""
    if row is None:
        return REFUSED[Refusal.NOT_FOUND]
    return ACCEPTED if is_held(row, hold.attempt, hold.stamp) else _lost(row, hold.attempt, hold.stamp)


def judge(row: Guarded | None, change: Change, now: int) -> Verdict:
    """Whether a change's guard holds. Keys are the store's to look at."""
    if row is None:
        return REFUSED[Refusal.NOT_FOUND]
    guard = change.guard
    if isinstance(guard, HoldGuard):
        if is_held(row, guard.attempt, guard.stamp, ended=guard.ended):
            return ACCEPTED
        return REPEATED if row.accepted_stamp == guard.stamp else _lost(row, guard.attempt, guard.stamp)
    lapsed = row.leased_until is not None and row.leased_until <= now
    if row.version != guard.version or (guard.lapsed and not lapsed):
        return REFUSED[Refusal.STALE]
    return ACCEPTED


def _lost(row: Guarded, attempt: int, stamp: int) -> Verdict:
    """Why a hold is gone. A later attempt means that another worker took the job, whatever became of it since. Upkeep, too,
    took a job that it made a dead letter: no other word but the holder's own does that."""
    if row.attempt > attempt or (row.state is State.DEAD and row.accepted_stamp != stamp):
        return REFUSED[Refusal.TAKEN]
    if row.hidden:
        return REFUSED[Refusal.NOT_FOUND]
    if row.state is State.CANCELLED:
        return REFUSED[Refusal.CANCELLED]
    return REFUSED[Refusal.COMPLETED if row.state in FINAL else Refusal.TAKEN]
