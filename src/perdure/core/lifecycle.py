"""A job's life: every rule about it, in one pure function.

`decide(record, report)` takes a job as somebody read it and a report about it, and returns the `Change` that follows, or
raises IllegalMove. A store never decides: it applies a change *if its guard still holds* and otherwise refuses it. A report
of the holder is guarded by the hold, any other report by the version of the row, because a state can look the same twice.
Upkeep's report of a lapsed lease repeats the lapse in the guard, because a renewal does not raise the version.

A report of                      may be
- the holder                     Succeeded, Continued, Failed, Snoozed, Skipped, Died, HandedBack, Stopped
- who saw the holder die         RunnerLost                     (the supervisor of a runner, the worker of a child process)
- upkeep                         LeaseLapsed, Expired           (promote and prune are set-wise moves of the store)
- anybody else                   Cancelled, Completed, Retried, RunNow, Deleted

Counters: `attempt` is raised by the claim alone. `failures` counts failures since the last retry of the dead letter, and
max_attempts limits it. `losses` counts workers that died under this job alone; any attempt whose end the handler reports
sets it back to 0.

A job that is ended from outside while its handler runs keeps its hold (slot, unique key, lease) until the holder reports
Stopped or the lease lapses. Only then may another job take the key.
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
    "draw_moves",
    "success_of",
]

_RUNNING, _retention = State.RUNNING, Retention.parse  # looked up thousands of times a second
ERRORS_KEPT = 20
LOSSES_ALLOWED = 3
DELETED = "deleted"  # the reason of a job that was deleted and had not succeeded

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


def decide(record: Record, report: Report, *, draw: float = 0.0) -> Change:
    """The change that follows from a report about a job. `draw` in 0…1 is the random part of the backoff's jitter."""
    match report:
        case Succeeded():
            return _end(record, State.SUCCEEDED, report.result, None, report.started_at)
        case Continued():
            done = _end(record, State.SUCCEEDED, None, None, report.started_at)
            return msgspec.structs.replace(done, next_id=report.jobs[-1].id, adds=report.jobs)
        case Failed():
            return _fail(record, report, draw)
        case Snoozed():
            again = _schedule_again(record, report.delay, report.at, report.reason, report.started_at)
            return msgspec.structs.replace(again, pays=True)
        case Skipped():
            return _end(record, State.SKIPPED, report.result, report.reason, report.started_at)
        case Died():
            errors = None if report.fault is None else _with_fault(record, report.fault)
            return _bury(record, report.reason, record.failures + 1, 0, errors, report.started_at)
        case HandedBack():
            return _hand_back(record, report)
        case Stopped():
            return _release_hold(record)
        case LeaseLapsed():
            return _lose(record, report, VersionGuard(record.version, lapsed=True))
        case RunnerLost() if record.state in FINAL:
            return _release_hold(record)
        case RunnerLost():
            return _lose(record, report, _guard_of(record), report.started_at)
        case Expired():
            return _cancel(record, "expired", only_waiting=True)
        case Cancelled():
            return _cancel(record, report.reason)
        case Completed():
            check_move(record, State.SUCCEEDED)
            return msgspec.structs.replace(_end_from_outside(record, State.SUCCEEDED, None), result=report.result)
        case Retried():
            return _retry(record)
        case RunNow():
            return _run_now(record)
        case Deleted():
            return _delete(record)


def success_of(record: Record, result: str | None, started_at: int | None) -> Change:
    """The change that follows from `Succeeded`, for workers that report thousands a second. No field of an
    `OrdinarySuccess` may be replaced, because stores rely on its kind."""
    kept, stamp = _retention(record.retention), record.stamp
    if kept.drop or kept.last is not None or stamp is None or record.state is not _RUNNING:
        return _end(record, State.SUCCEEDED, result, None, started_at)
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


def draw_moves() -> str:
    """The table of legal moves as a Mermaid diagram, for the docs."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in (State.READY, State.SCHEDULED, State.BLOCKED)]
    for origin, targets in MOVES.items():
        lines += [f"    {origin} --> {target}" for target in State if target in targets]
    lines += [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines)


# ---- reports of the holder -------------------------------------------------------------------------
def _guard_of(record: Record) -> HoldGuard:
    if record.stamp is None:
        raise IllegalMove(f"job {record.id} is not held by anybody")
    return HoldGuard(record.attempt, record.stamp)


def _end(record: Record, state: State, result: str | None, reason: str | None, started_at: int | None) -> Change:
    check_move(record, state)
    kept = Retention.parse(record.retention)
    return Change(
        record.id,
        _guard_of(record),
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


def _fail(record: Record, report: Failed, draw: float) -> Change:
    failures = record.failures + 1
    errors = _with_fault(record, report.fault)
    if not report.retryable:
        return _bury(record, f"{report.fault.kind} is not retried", failures, 0, errors, report.started_at)
    if record.max_attempts is not None and failures >= record.max_attempts:
        reason = f"failed {failures} of {record.max_attempts} attempts"
        return _bury(record, reason, failures, 0, errors, report.started_at)
    delay = report.delay
    if delay is None and report.at is None:
        delay = Backoff.parse(record.backoff).delay(failures, draw=draw)
    return _schedule_again(record, delay, report.at, None, report.started_at, failures=failures, errors=errors)


def _schedule_again(
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
        guard=_guard_of(record),
        state=State.SCHEDULED,
        failures=record.failures if failures is None else failures,
        losses=0,
        delay=delay,
        at=at,
        reason=reason or None,
        errors=errors,
        started_at=started_at,
    )


def _bury(
    record: Record, reason: str, failures: int, losses: int, errors: str | None, started_at: int | None
) -> Change:
    check_move(record, State.DEAD)
    kept = Retention.parse(record.dead_retention)
    return Change(
        id=record.id,
        guard=_guard_of(record),
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


def _hand_back(record: Record, report: HandedBack) -> Change:
    check_move(record, State.READY)
    return Change(
        id=record.id,
        guard=_guard_of(record),
        state=State.READY,
        failures=record.failures,
        losses=record.losses,
        suspect=record.suspect,
        reason=report.reason,
    )


def _release_hold(record: Record) -> Change:
    hold = _guard_of(record)
    return Change(record.id, HoldGuard(hold.attempt, hold.stamp, ended=True), None, key=KeyMove.FREE)


# ---- a lost worker ---------------------------------------------------------------------------------
def _lose(record: Record, report: LeaseLapsed | RunnerLost, guard: Guard, started_at: int | None = None) -> Change:
    if record.state in FINAL:  # ended from outside, and its holder never came back
        return Change(record.id, guard, None, key=KeyMove.FREE)
    check_move(record, State.READY)
    losses = record.losses + 1 if report.charged else record.losses
    errors = None if report.fault is None else _with_fault(record, report.fault)
    if losses >= LOSSES_ALLOWED or (report.charged and record.max_attempts == 1):
        reason = f"poison: {losses} worker{'s' if losses > 1 else ''} died while running it"
        dead = _bury(record, reason, record.failures, losses, errors, started_at)
        return msgspec.structs.replace(dead, guard=guard)
    return Change(
        id=record.id,
        guard=guard,
        state=State.READY,
        failures=record.failures,
        losses=losses,
        suspect=record.suspect or report.suspect or report.charged,
        reason=record.reason,
        errors=errors,
        started_at=started_at,
    )


# ---- reports of others -----------------------------------------------------------------------------
def _cancel(record: Record, reason: str | None, *, only_waiting: bool = False) -> Change:
    check_move(record, State.CANCELLED)
    if record.state in FINAL:
        raise IllegalMove(f"job {record.id} is {record.state}: it can be retried or deleted, not cancelled")
    if only_waiting and record.state not in WAITING:
        raise IllegalMove(f"job {record.id} is {record.state} and can no longer expire")
    return _end_from_outside(record, State.CANCELLED, reason)


def _end_from_outside(record: Record, state: State, reason: str | None) -> Change:
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


def _retry(record: Record) -> Change:
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


def _run_now(record: Record) -> Change:
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


def _delete(record: Record) -> Change:
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
    gone = _end_from_outside(record, State.CANCELLED, DELETED)
    return msgspec.structs.replace(gone, keep=HIDDEN_FOR, keep_last=None, hidden=True)


# ---- shared ----------------------------------------------------------------------------------------
def _with_fault(record: Record, fault: Fault) -> str:
    return faults_text([*faults_of(record.errors), fault][-ERRORS_KEPT:])
