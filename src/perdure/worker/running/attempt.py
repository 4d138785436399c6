"""One attempt of one job, from its claim until the store has confirmed its end."""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ...core.clock import MicrosReader
from ...core.job import Loss
from ...core.lifecycle import (
    Change,
    Continued,
    Died,
    Failed,
    HandedBack,
    Report,
    RunnerLost,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
    decide,
    success_of,
)
from ...core.outcome import Dead, Outcome, Retry, Skip, Snooze
from ...core.record import Fault, Record
from ...errors import ArgumentsDoNotFit, HoldLost, InvalidCall, UnknownParent, words_of
from ...flow.graph import Continuing
from ...handler import context_access
from ...handler.context import Context
from ...storage.contract import Refusal
from ...tasks import middleware
from ..host import host_of

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition
    from .batches import Batch

MARGIN = 0.1  # of a lease: we stop trusting it this much earlier than the store does
_OURS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.abspath(middleware.__file__))
_KNOWN_AS = ((UnknownParent, UnknownParent.__name__), (ArgumentsDoNotFit, InvalidCall.__name__))
_ENDED_FROM_OUTSIDE = (Refusal.CANCELLED, Refusal.COMPLETED, Refusal.NOT_FOUND)
SHORTEST_LEASE = 100_000  # microseconds: a lease that was lost for another reason than its own length
STORE_FAILED = "handed back after the store was out of reach"
TRACEBACK_CHARS = 8_000
MESSAGE_CHARS = 2_000


class ChildReport(Outcome):
    """The report on a handler that ran in a child process, which decided it."""

    def __init__(self, report: Report) -> None:
        super().__init__(type(report).__name__)
        self.report = report


class ChildLost(Exception):
    """The process of a handler died. It ran nothing else, so its job is charged."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Attempt(msgspec.Struct, eq=False):
    """A held job: what runs, how long its lease is trusted, and why it was lost."""

    record: Record
    definition: TaskDefinition | None
    asked_at: float  # when the request was sent that got or renewed its lease
    trusted_until: float
    renew_at: float
    context: Context | None = None
    slot: asyncio.Task[None] | None = None
    batch: Batch | None = None  # it runs together with others
    started_at: int | None = None
    started_boot: float = 0.0
    started_noted: bool = False
    took: float = 0.0  # seconds that its handler kept a slot
    lost: Loss | None = None
    store_wait: float | None = None  # seconds that it had waited for an answer of the store when its time ended
    ended: bool = False  # the handler is over, or its thread was given up
    given_up: bool = False  # its time was over and its thread could not be stop_change_of
    reported: bool = False  # its end is on the way to the store
    parents: tuple[tuple[str, str | None], ...] = ()  # task and result of those it waited for
    board_position: int = -1  # on the runner's status board
    untimed: bool = False  # it waits for a process to run in: its time has not begun
    raised: BaseException | None = None  # what its handler raised, until that is in the log

    @staticmethod
    def of(record: Record, definition: TaskDefinition | None, asked_at: float) -> Attempt:
        """The store granted this job, with a lease, to a request made at `asked_at`."""
        return Attempt(record, definition, asked_at, *_times(record.lease, asked_at))

    @staticmethod
    def of_all(records: Iterable[Record], definitions: Mapping[str, TaskDefinition], asked_at: float) -> list[Attempt]:
        """The same for all jobs that a request was granted: mostly their leases are equal."""
        lease, trusted_until, renew_at = 0, asked_at, asked_at
        attempts = []
        for record in records:
            if record.lease != lease:
                lease = record.lease
                trusted_until, renew_at = _times(lease, asked_at)
            attempts.append(Attempt(record, definitions.get(record.task), asked_at, trusted_until, renew_at))
        return attempts

    def trust(self, asked_at: float) -> None:
        """The store prolonged the lease at a request made at `asked_at`."""
        self.asked_at = asked_at
        self.trusted_until, self.renew_at = _times(self.record.lease, asked_at)

    @property
    def at_work(self) -> bool:
        """Its handler has begun and is not over."""
        return self.started_at is not None and not self.ended

    def lose(self, reason: Loss) -> bool:
        """Tell the handler to stop. False when that was done before."""
        if self.lost is not None or self.ended:
            return False
        self.lost = reason
        if reason is Loss.TIMEOUT:
            self.store_wait = self._waited_for_store()
        if self.context is not None:
            context_access.lose(self.context, reason)
        if self.slot is not None:
            self.slot.cancel()
        if self.batch is not None:
            self.batch.note_lost_item(reason)
        return True

    def _waited_for_store(self) -> float | None:
        contexts = (self.context, None if self.batch is None else self.batch.context)
        waited = [context_access.seconds_of_store_wait(context) for context in contexts if context is not None]
        return max((seconds for seconds in waited if seconds is not None), default=None)


def _times(lease: int, asked_at: float) -> tuple[float, float]:
    """Until when to trust a lease that was asked for then, and when to renew it."""
    seconds = lease / 1_000_000
    return asked_at + seconds * (1 - MARGIN), asked_at + seconds / 3


def change_for(attempt: Attempt, outcome: object, error: BaseException | None, now: MicrosReader) -> Change | None:
    """The change for an attempt that ended with a value or an error; None: there is nothing to write.

    The value or error may have a class of the user's, and break when it is used: that is a failure of the job, too."""
    definition = attempt.definition
    if error is None and attempt.lost is None and definition is not None:  # nearly every job
        try:
            if outcome is None:
                return success_of(attempt.record, None, attempt.started_at)
            if outcome.__class__ is not Continuing:
                return success_of(attempt.record, definition.encode_result(outcome), attempt.started_at)
            return decide(attempt.record, success_report_of(attempt, definition, outcome))
        except KeyboardInterrupt:
            raise
        except BaseException as unfit:
            error = unfit
    try:
        return _change_of(attempt, outcome, error, now)
    except KeyboardInterrupt:
        raise
    except BaseException as unfit:
        return decide(attempt.record, failure_of(attempt, unfit, now, retryable=True), draw=random.random())


def _change_of(attempt: Attempt, outcome: object, error: BaseException | None, now: MicrosReader) -> Change | None:
    match attempt.lost:
        case Loss.CANCELLED | Loss.ALREADY_COMPLETED | Loss.NOT_FOUND | Loss.TAKEN_BY_ANOTHER_WORKER:
            return stop_change_of(attempt)
        case Loss.TIMEOUT:
            return decide(attempt.record, _timeout_of(attempt, now), draw=random.random())
        case Loss.SHUTDOWN if error is not None and not isinstance(error, Outcome):
            return hand_back(attempt, "handed back at shutdown")
        case Loss.ERROR if isinstance(error, asyncio.CancelledError | HoldLost):
            return stop_change_of(attempt)
    return decide(attempt.record, report_of(attempt, outcome, error, now), draw=random.random())


def stop_change_of(attempt: Attempt) -> Change | None:
    """The last change for a hold that is gone: it frees slot and key. None if another hold has replaced it."""
    match attempt.lost:
        case Loss.CANCELLED | Loss.ALREADY_COMPLETED | Loss.NOT_FOUND:
            return decide(attempt.record, Stopped())
        case Loss.ERROR if attempt.record.lease < SHORTEST_LEASE:
            return decide(attempt.record, _lease_too_short(attempt.record), draw=random.random())
        case (
            Loss.ERROR
        ):  # the worker no longer trusted the lease: no fault of the job, and perhaps the hold is still valid
            return hand_back(attempt, STORE_FAILED)
    return None


def _lease_too_short(record: Record) -> Failed:
    """A lease that is over before its job can run is a failure of the job. Handed back free of charge, the job would be
    claimed again at once, and so on for ever."""
    message = f"its lease of {record.lease / 1_000_000:g} s is too short to be held"
    at = record.leased_until or 0
    fault = Fault(record.attempt, record.leased_by or "", at, at, "LeaseTooShort", message, "")
    return Failed(fault, True, None, None, None)


def after_refusal(attempt: Attempt, change: Change, refusal: Refusal | None) -> Change | None:
    """What is left to report when the end of an attempt was refused: its job was ended from outside, and now its code has
    stop_change_of too, so slot and key are free. None when there is nothing left."""
    if change.state is None or refusal not in _ENDED_FROM_OUTSIDE:
        return None
    return decide(attempt.record, Stopped())


def hand_back(attempt: Attempt, reason: str | None = None) -> Change:
    """The change that gives a job back, free of charge."""
    return decide(attempt.record, HandedBack(reason))


def report_of(attempt: Attempt, outcome: object, error: BaseException | None, now: MicrosReader) -> Report:
    """The report on the end of a handler."""
    started = attempt.started_at
    if error is None:
        assert attempt.definition is not None
        return success_report_of(attempt, attempt.definition, outcome)
    error = outcome_within(error)
    match error:
        case ChildReport():
            return error.report
        case ChildLost():
            lost = msgspec.structs.replace(error.fault, started_at=started or error.fault.ended_at)
            return RunnerLost(lost, charged=True, started_at=started)
        case Retry():
            failure = failure_of(attempt, error, now, retryable=True)
            return Failed(failure.fault, True, error.delay, error.at, started)
        case Snooze():
            return Snoozed(error.delay, error.at, error.reason, started)
        case Skip():
            return Skipped(error.reason, _result_text(attempt, error.result), started)
        case ArgumentsDoNotFit():
            return Died("its arguments do not fit the task", fault_of(attempt, error, now), started)
        case Dead():
            return Died(error.reason or "the handler said so", fault_of(attempt, error, now), started)
        case _:
            return failure_of(attempt, error, now, retryable=_retries(attempt, error))


def success_report_of(attempt: Attempt, definition: TaskDefinition, value: object) -> Succeeded | Continued:
    """The report on a handler's value. Raises InvalidCall when it cannot be stored."""
    if value.__class__ is Continuing:
        assert attempt.context is not None
        jobs = host_of(attempt.context.app).jobs_to_continue(value.flow, attempt.record)
        return Continued(jobs, attempt.started_at)
    return Succeeded(definition.encode_result(value), attempt.started_at)


def outcome_within(error: BaseException) -> BaseException:
    """The Outcome inside exception groups, if there is one; else the error itself."""
    if isinstance(error, BaseExceptionGroup):
        found: BaseException | None = error.subgroup(Outcome)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return error


def failure_of(attempt: Attempt, error: BaseException, now: MicrosReader, *, retryable: bool) -> Failed:
    return Failed(fault_of(attempt, error, now), retryable, None, None, attempt.started_at)


def fault_of(attempt: Attempt, error: BaseException, now: MicrosReader, kind: str | None = None) -> Fault:
    ended = now()
    text, readable = _traceback(error)
    attempt.raised = error if readable else None
    return Fault(
        attempt=attempt.record.attempt,
        worker=attempt.record.leased_by or "",
        started_at=attempt.started_at or ended,
        ended_at=ended,
        kind=kind or _kind_of(error),
        message=words_of(error)[:MESSAGE_CHARS],
        traceback=text,
    )


def _kind_of(error: BaseException) -> str:
    """The name of the error, by which a user knows it."""
    for known, kind in _KNOWN_AS:
        if isinstance(error, known):
            return kind
    return type(error).__name__


def _timeout_of(attempt: Attempt, now: MicrosReader) -> Failed:
    seconds = (attempt.record.timeout or 0) / 1_000_000
    error = TimeoutError(f"the attempt took longer than its timeout of {seconds:g} s")
    return failure_of(attempt, error, now, retryable=_retries(attempt, error))


def _retries(attempt: Attempt, error: BaseException) -> bool:
    if isinstance(error, HoldLost) or attempt.definition is None:
        return True
    return attempt.definition.retries(error)


def _result_text(attempt: Attempt, value: object) -> str | None:
    if value is None or attempt.definition is None:
        return None
    return attempt.definition.encode_result(value)


def _traceback(error: BaseException) -> tuple[str | None, bool]:
    """The traceback as a text, and whether Python could print the whole error: what it cannot print, no log can."""
    if error.__traceback__ is None or isinstance(error, Outcome):
        return None, True
    trace = _below_worker(error.__traceback__)
    readable = True
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # the error, its causes and notes may be of the user's making: the frames are not
        text, readable = "".join(traceback.format_tb(trace)), False
    return text[-TRACEBACK_CHARS:].encode("utf-8", "backslashreplace").decode(), readable


def take_raised(attempt: Attempt) -> tuple[type[BaseException], BaseException, TracebackType] | None:
    """What its handler raised, with the frames of the handler, for the log. It is given once: frames keep objects alive."""
    error, attempt.raised = attempt.raised, None
    if error is None or error.__traceback__ is None or isinstance(error, Outcome):
        return None
    return type(error), error, _below_worker(error.__traceback__)


def _below_worker(trace: TracebackType) -> TracebackType:
    """The frames of the handler, without those of the worker around it."""
    below: TracebackType | None = trace
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_OURS):
        below = below.tb_next
    return below or trace
