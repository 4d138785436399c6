"""A change: what follows from a report about a job, for a store to apply if its guard holds. Only `lifecycle` makes them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .job import State
from .record import NewJob


class HoldGuard(msgspec.Struct, frozen=True, gc=False):
    """The row is running under this very hold. With `ended`, the row has been ended from outside and still
    carries this hold."""

    attempt: int
    stamp: int
    ended: bool = False


class VersionGuard(msgspec.Struct, frozen=True, gc=False):
    """The row has not moved since it was read. With `lapsed`, its lease is over by the store's clock too."""

    version: int
    lapsed: bool = False


Guard = HoldGuard | VersionGuard


class KeyMove(StrEnum):
    """What becomes of a unique key of scope waiting or active."""

    LEAVE = "leave"
    FREE = "free"
    TAKE = "take"


class Change(msgspec.Struct, frozen=True, gc=False):
    """A decided move. A store writes these values when the guard holds, raises the version by one, and

    - leaves the row as it is, but for its hold and key, which are given up, when `state` is None;
    - leaves errors and started_at as they are when they are None here; writes result and reason always;
    - sets run_at (and rank) to `at`, or to now + `delay`; leaves both as they are when neither is given; a job whose
      time has come by then is ready, not scheduled. A rank that is not the run_at is a share of a fair queue: it stays,
      and with `pays` it moves back by one share;
    - puts `adds` on record, whatever the bounds of their queues, and writes next_id when it is given; if that one is a
      duplicate, the id of the job that has its key;
    - sets finished_at when the row enters a final state and clears it when it leaves one; prune_at = now + `keep`;
    - clears stamp, leased_by and leased_until unless `keeps_hold`; under a HoldGuard it stores the stamp as `accepted_stamp`
      (not when `state` is None: that was no report about the job);
    - frees, takes or leaves the unique key; a key that cannot be taken refuses this change alone.
    """

    id: str
    guard: Guard
    state: State | None
    failures: int = 0
    losses: int = 0
    suspect: bool = False
    delay: int | None = None
    at: int | None = None
    result: str | None = None
    reason: str | None = None
    errors: str | None = None
    keep: int | None = None  # microseconds that an ended job stays; None: for ever
    keep_last: int | None = None
    hidden: bool = False
    started_at: int | None = None
    keeps_hold: bool = False
    key: KeyMove = KeyMove.LEAVE
    pays: bool = False
    next_id: str | None = None
    adds: tuple[NewJob, ...] = ()


class OrdinarySuccess(Change, frozen=True, gc=False):
    """The end of nearly every job: its holder reports that it succeeded, with nothing beside it but a result. Fast paths of
    stores know these changes by their type: only id, guard, failures, result, keep and started_at differ."""

    state: State | None = State.SUCCEEDED
    key: KeyMove = KeyMove.FREE
