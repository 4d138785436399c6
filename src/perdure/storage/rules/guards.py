"""Decides whether the guard of a change holds for a row, in one place for every store that reads rows in Python."""

from __future__ import annotations

from typing import Protocol

from ...core.job import FINAL, State
from ...core.lifecycle import Change, HoldGuard
from ...core.record import Hold
from ..contract import ACCEPTED, REFUSED, REPEATED, Refusal, Verdict


class Guarded(Protocol):
    """The fields of a row that guards read."""

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
    """Whether a hold is still valid, and if not, why."""
    if row is None:
        return REFUSED[Refusal.NOT_FOUND]
    return ACCEPTED if is_held(row, hold.attempt, hold.stamp) else _refusal_of(row, hold.attempt, hold.stamp)


def judge(row: Guarded | None, change: Change, now: int) -> Verdict:
    """Whether a change's guard holds. The store itself checks unique keys."""
    if row is None:
        return REFUSED[Refusal.NOT_FOUND]
    guard = change.guard
    if isinstance(guard, HoldGuard):
        if is_held(row, guard.attempt, guard.stamp, ended=guard.ended):
            return ACCEPTED
        return REPEATED if row.accepted_stamp == guard.stamp else _refusal_of(row, guard.attempt, guard.stamp)
    lapsed = row.leased_until is not None and row.leased_until <= now
    if row.version != guard.version or (guard.lapsed and not lapsed):
        return REFUSED[Refusal.STALE]
    return ACCEPTED


def _refusal_of(row: Guarded, attempt: int, stamp: int) -> Verdict:
    """Why a hold is gone. A later attempt means that another worker claimed the job, whatever happened since. A dead letter
    that this holder did not report was made by upkeep, which took the job as well."""
    if row.attempt > attempt or (row.state is State.DEAD and row.accepted_stamp != stamp):
        return REFUSED[Refusal.TAKEN]
    if row.hidden:
        return REFUSED[Refusal.NOT_FOUND]
    if row.state is State.CANCELLED:
        return REFUSED[Refusal.CANCELLED]
    return REFUSED[Refusal.COMPLETED if row.state in FINAL else Refusal.TAKEN]
