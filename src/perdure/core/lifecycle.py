"""A job's life: every rule about it, in one pure function.

`decide(record, said)` takes a job as somebody saw it and what was said about it, and gives the `Change` that
follows, or raises IllegalMove. A store never judges: it applies a change *if its guard still holds* and
otherwise refuses it. The holder's words are guarded by the hold; everybody else's by the row's version, because
a state can look the same twice. Upkeep's word about a lapsed lease repeats the lapse in the guard: a renewal
does not raise the version.

What was said by                 may be
- the holder                     Succeeded, Continued, Failed, Snoozed, Skipped, Died, HandedBack, Stopped
- who saw the holder die         RunnerLost                     (the supervisor of a runner, the worker of a child process)
- upkeep                         LeaseEnded, Expired            (promote and prune are set-wise moves of the store)
- anybody else                   Cancelled, Completed, Retried, HurriedUp, Deleted

Counters: `attempt` is raised by the claim alone. `failures` counts failures since the last retry of the dead
letter and is what max_attempts limits. `losses` counts workers that died under this job alone; any attempt that
ends by the handler's own word sets it back.

A job ended from outside while its handler still runs keeps its hold (slot, unique key, lease) until the holder
says Stopped or the lease ends: only then may another job take the key.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..errors import IllegalMove
from .backoff import Backoff
from .change import Change, Guard, HoldGuard, KeyMove, OrdinarySuccess, VersionGuard
from .job import FINAL, WAITING, State
from .record import HARMLESS_FLAWS, Fault, Record, faults_of, faults_text, unreadable_fields
from .reports import (
    Cancelled,
    Completed,
    Continued,
    Deleted,
    Died,
    Expired,
    Failed,
    HandedBack,
    LeaseLapsed,
    Report,
    Retried,
    RunnerLost,
    RunNow,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
)
from .retention import HIDDEN_FOR, Retention

__all__ = [
    "ERRORS_KEPT",
    "LOSSES_ALLOWED",
    "MOVES",
    "Cancelled",
    "Change",
    "Completed",
    "Continued",
    "Deleted",
    "Died",
    "Expired",
    "Failed",
    "Guard",
    "HandedBack",
    "HoldGuard",
    "KeyMove",
    "LeaseLapsed",
    "OrdinarySuccess",
    "Report",
    "Retried",
    "RunNow",
    "RunnerLost",
    "Skipped",
    "Snoozed",
    "Stopped",
    "Succeeded",
    "VersionGuard",
    "check_move",
    "decide",
    "drawing",
    "succeeded",
]

_RUNNING, _retention = State.RUNNING, Retention.parse  # looked for thousands of times a second
ERRORS_KEPT = 20
LOSSES_ALLOWED = 3
DELETED = "deleted"  # the reason of a job that somebody took away before, or although, it did not end well

MOVES: Final[dict[State, frozenset[State]]] = {
    State.BLOCKED: frozenset({State.READY, State.SCHEDULED, State.SUCCEEDED, State.CANCELLED}),
    State.SCHEDULED: frozenset({State.READY, State.SUCCEEDED, State.CANCELLED}),
    State.READY: frozenset({State.RUNNING, State.SUCCEEDED, State.CANCELLED}),
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.SKIPPED, State.DEAD, State.CANCELLED, State.SCHEDULED, State.READY}
    ),
    State.SUCCEEDED: frozenset(),
    State.SKIPPED: frozenset(),
    State.DEAD: frozenset({State.READY, State.CANCELLED}),
    State.CANCELLED: frozenset(),
}


def decide(record: Record, said: Report, *, draw: float = 0.0) -> Change:
    """The change that follows from what was said about a job. `draw` in 0…1 places the backoff's jitter."""
    match said:
        case Succeeded():
            return _ended(record, State.SUCCEEDED, said.result, None, said.started_at)
        case Continued():
            done = _ended(record, State.SUCCEEDED, None, None, said.started_at)
            return msgspec.structs.replace(done, next_id=said.jobs[-1].id, adds=said.jobs)
        case Failed():
            return _failed(record, said, draw)
        case Snoozed():
            again = _again(record, said.delay, said.at, said.reason, said.started_at)
            return msgspec.structs.replace(again, pays=True)
        case Skipped():
            return _ended(record, State.SKIPPED, said.result, said.reason, said.started_at)
        case Died():
            errors = None if said.fault is None else _with_fault(record, said.fault)
            return _dead(record, said.reason, record.failures + 1, 0, errors, said.started_at)
        case HandedBack():
            return _handed_back(record, said)
        case Stopped():
            return _stopped(record)
        case LeaseLapsed():
            return _lost(record, said, VersionGuard(record.version, lapsed=True))
        case RunnerLost() if record.state in FINAL:
            return _stopped(record)
        case RunnerLost():
            return _lost(record, said, _held(record), said.started_at)
        case Expired():
            return _cancelled(record, "expired", only_waiting=True)
        case Cancelled():
            return _cancelled(record, said.reason)
        case Completed():
            check_move(record, State.SUCCEEDED)
            return msgspec.structs.replace(_ended_from_outside(record, State.SUCCEEDED, None), result=said.result)
        case Retried():
            return _retried(record)
        case RunNow():
            return _hurried_up(record)
        case Deleted():
            return _deleted(record)


def succeeded(record: Record, result: str | None, started_at: int | None) -> Change:
    """What follows from `Succeeded`; for those who say it of thousands of jobs a second. Where its kind says all
    (`PlainSuccess`), no field of it may be replaced."""
    kept, stamp = _retention(record.retention), record.stamp
    if kept.drop or kept.last is not None or stamp is None or record.state is not _RUNNING:
        return _ended(record, State.SUCCEEDED, result, None, started_at)
    return OrdinarySuccess(
        record.id,
        HoldGuard(record.attempt, stamp),
        failures=record.failures,
        result=result,
        keep=kept.age,
        started_at=started_at,
    )


def check_move(record: Record, to: State) -> None:
    if to not in MOVES[record.state]:
        raise IllegalMove(f"job {record.id} is {record.state} and cannot become {to}")


def drawing() -> str:
    """The table of legal moves as a Mermaid drawing, for the docs."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in (State.READY, State.SCHEDULED, State.BLOCKED)]
    for origin, targets in MOVES.items():
        lines += [f"    {origin} --> {target}" for target in State if target in targets]
    lines += [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines)


# ---- the holder's words ----------------------------------------------------------------------------
def _held(record: Record) -> HoldGuard:
    if record.stamp is None:
        raise IllegalMove(f"job {record.id} is not held by anybody")
    return HoldGuard(record.attempt, record.stamp)


def _ended(record: Record, state: State, result: str | None, reason: str | None, started_at: int | None) -> Change:
    check_move(record, state)
    kept = Retention.parse(record.retention)
    return Change(
        record.id,
        _held(record),
        state,
        record.failures,
        result=result,
        reason=reason or None,
        keep=HIDDEN_FOR if kept.drop else kept.age,
        keep_last=kept.last,
        hidden=kept.drop,
        started_at=started_at,
        key=KeyMove.FREE,
    )


def _failed(record: Record, said: Failed, draw: float) -> Change:
    failures = record.failures + 1
    errors = _with_fault(record, said.fault)
    if not said.retryable:
        return _dead(record, f"{said.fault.kind} is not retried", failures, 0, errors, said.started_at)
    if record.max_attempts is not None and failures >= record.max_attempts:
        reason = f"failed {failures} of {record.max_attempts} attempts"
        return _dead(record, reason, failures, 0, errors, said.started_at)
    delay = said.delay
    if delay is None and said.at is None:
        delay = Backoff.parse(record.backoff).delay(failures, draw=draw)
    return _again(record, delay, said.at, None, said.started_at, failures=failures, errors=errors)


def _again(
    record: Record,
    delay: int | None,
    at: int | None,
    reason: str | None,
    started_at: int | None,
    *,
    failures: int | None = None,
    errors: str | None = None,
) -> Change:
    check_move(record, State.SCHEDULED)
    return Change(
        id=record.id,
        guard=_held(record),
        state=State.SCHEDULED,
        failures=record.failures if failures is None else failures,
        losses=0,
        delay=delay,
        at=at,
        reason=reason or None,
        errors=errors,
        started_at=started_at,
    )


def _dead(
    record: Record, reason: str, failures: int, losses: int, errors: str | None, started_at: int | None
) -> Change:
    check_move(record, State.DEAD)
    kept = Retention.parse(record.dead_retention)
    return Change(
        id=record.id,
        guard=_held(record),
        state=State.DEAD,
        failures=failures,
        losses=losses,
        reason=reason,
        errors=errors,
        keep=HIDDEN_FOR if kept.drop else kept.age,
        keep_last=kept.last,
        hidden=kept.drop,
        started_at=started_at,
        key=KeyMove.FREE,
    )


def _handed_back(record: Record, said: HandedBack) -> Change:
    check_move(record, State.READY)
    return Change(
        id=record.id,
        guard=_held(record),
        state=State.READY,
        failures=record.failures,
        losses=record.losses,
        suspect=record.suspect,
        reason=said.reason,
    )


def _stopped(record: Record) -> Change:
    hold = _held(record)
    return Change(record.id, HoldGuard(hold.attempt, hold.stamp, ended=True), None, key=KeyMove.FREE)


# ---- a lost worker ---------------------------------------------------------------------------------
def _lost(record: Record, said: LeaseLapsed | RunnerLost, guard: Guard, started_at: int | None = None) -> Change:
    if record.state in FINAL:  # ended from outside, and its holder never came back
        return Change(record.id, guard, None, key=KeyMove.FREE)
    check_move(record, State.READY)
    losses = record.losses + 1 if said.charged else record.losses
    errors = None if said.fault is None else _with_fault(record, said.fault)
    if losses >= LOSSES_ALLOWED or (said.charged and record.max_attempts == 1):
        reason = f"poison: {losses} worker{'s' if losses > 1 else ''} died while running it"
        dead = _dead(record, reason, record.failures, losses, errors, started_at)
        return msgspec.structs.replace(dead, guard=guard)
    return Change(
        id=record.id,
        guard=guard,
        state=State.READY,
        failures=record.failures,
        losses=losses,
        suspect=record.suspect or said.suspect or said.charged,
        reason=record.reason,
        errors=errors,
        started_at=started_at,
    )


# ---- everybody else's words ------------------------------------------------------------------------
def _cancelled(record: Record, reason: str | None, *, only_waiting: bool = False) -> Change:
    check_move(record, State.CANCELLED)
    if record.state in FINAL:
        raise IllegalMove(f"job {record.id} is {record.state}: it can be retried or deleted, not cancelled")
    if only_waiting and record.state not in WAITING:
        raise IllegalMove(f"job {record.id} is {record.state} and can no longer expire")
    return _ended_from_outside(record, State.CANCELLED, reason)


def _ended_from_outside(record: Record, state: State, reason: str | None) -> Change:
    kept = Retention.parse(record.retention)
    running = record.state is State.RUNNING
    return Change(
        id=record.id,
        guard=VersionGuard(record.version),
        state=state,
        failures=record.failures,
        losses=record.losses,
        reason=reason or None,
        keep=HIDDEN_FOR if kept.drop else kept.age,
        keep_last=kept.last,
        hidden=kept.drop,
        keeps_hold=running,
        key=KeyMove.LEAVE if running else KeyMove.FREE,
    )


def _retried(record: Record) -> Change:
    if record.state is not State.DEAD or record.hidden:
        raise IllegalMove(f"job {record.id} is {record.state}; only a dead letter can be retried")
    lost = [field for field in unreadable_fields(record.reason) if field not in HARMLESS_FLAWS]
    if lost:
        raise IllegalMove(
            f"job {record.id} cannot be retried: its {' and '.join(lost)} could not be read and would have to be made up; "
            "`perdure dead export` tells what was stored"
        )
    return Change(
        id=record.id,
        guard=VersionGuard(record.version),
        state=State.READY,
        failures=0,
        losses=0,
        delay=0,
        key=KeyMove.TAKE if record.unique_scope == "active" else KeyMove.LEAVE,
    )


def _hurried_up(record: Record) -> Change:
    if record.state is not State.SCHEDULED:
        raise IllegalMove(f"job {record.id} is {record.state}; only a scheduled job can be run now")
    return Change(
        id=record.id,
        guard=VersionGuard(record.version),
        state=State.READY,
        failures=record.failures,
        losses=record.losses,
        suspect=record.suspect,
        delay=0,
        reason=record.reason,
    )


def _deleted(record: Record) -> Change:
    if record.hidden:
        raise IllegalMove(f"job {record.id} is deleted already")
    if record.state in FINAL:
        return Change(
            id=record.id,
            guard=VersionGuard(record.version),
            state=State.CANCELLED if record.state is State.DEAD else record.state,  # nobody can wait for its retry
            failures=record.failures,
            losses=record.losses,
            suspect=record.suspect,
            result=record.result,
            reason=record.reason if record.state in (State.SUCCEEDED, State.SKIPPED) else DELETED,
            keep=HIDDEN_FOR,
            hidden=True,
            keeps_hold=record.stamp is not None,
        )
    gone = _ended_from_outside(record, State.CANCELLED, DELETED)
    return msgspec.structs.replace(gone, keep=HIDDEN_FOR, keep_last=None, hidden=True)


# ---- shared ----------------------------------------------------------------------------------------
def _with_fault(record: Record, fault: Fault) -> str:
    return faults_text([*faults_of(record.errors), fault][-ERRORS_KEPT:])
