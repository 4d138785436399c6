"""Every error that Perdure raises, as one tree.

PerdureError
├── InvalidCall (ValueError)        arguments or options are wrong; nothing was stored
│   └── UnknownParent               `after=` names a job that is not there
├── NotFound (LookupError)          no such job, queue setting, schedule …
├── QueueFull                       the queue has reached its max_depth and rejects
├── StoreError                      URL, file, schema, privileges, durability, unreachable
├── JobNotSuccessful                a job ended without a result; `.job` says how
│   ├── JobDead
│   ├── JobCancelled
│   └── JobSkipped
├── ResultTimeout (TimeoutError)    `result(timeout=…)` ran out of time; the job goes on
├── HoldLost                        this handler no longer holds its job
├── IllegalMove                     the job's state does not allow the move
├── DuplicateTask (ValueError)      two different tasks under one name
├── NoLoop (RuntimeError)           an async verb outside a running loop; use `.sync`
├── NoContext (LookupError)         `Context.current()` outside a handler
└── NoApp (LookupError)             a task of a Registry that no app has included
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .core.job import Job, Loss


class PerdureError(Exception):
    """The root of all errors of Perdure."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__  # __init__ may ask for more than args


class InvalidCall(PerdureError, ValueError):
    """Arguments or options are wrong. Nothing was stored."""


class ArgumentsDoNotFit(InvalidCall):
    """The stored arguments of a job do not fit the parameters of its task. No other attempt would end otherwise. Users see
    it as an InvalidCall."""


class UnknownParent(InvalidCall):
    """A job was to wait for a job that is not there."""


class NotFound(PerdureError, LookupError):
    """There is no such thing on record."""


class QueueFull(PerdureError):
    """The queue has reached its `max_depth` and takes no more jobs now."""


class StoreError(PerdureError):
    """The store cannot be used as asked: URL, file, schema, privileges, durability or reach."""


class StoreMisconfigured(StoreError):
    """The URL, the app's settings or the server's configuration are wrong. Trying again does not help; somebody has to
    change one of them. For callers it is a StoreError."""


class StoreUnavailable(StoreError):
    """The store itself is in trouble: out of reach, without a free connection, failing over, or locked for too long. Callers
    know it as a StoreError. `place` says which store: a worker does not charge a job with the trouble of its own store."""

    place: str = ""

    def at(self, place: object) -> Self:
        self.place = str(place)
        return self


class JobNotSuccessful(PerdureError):
    """A job ended without a result. `.job` is the job as it ended."""

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class JobDead(JobNotSuccessful):
    """The job is a dead letter."""


class JobCancelled(JobNotSuccessful):
    """The job was cancelled."""


class JobSkipped(JobNotSuccessful):
    """The job's handler found nothing to do."""


class ResultTimeout(PerdureError, TimeoutError):
    """The result did not come in time. The job itself goes on."""


class HoldLost(PerdureError):
    """This handler no longer holds its job; what it says is refused."""

    def __init__(self, message: str, reason: Loss | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class IllegalMove(PerdureError):
    """The job's state does not allow this move."""


class DuplicateTask(PerdureError, ValueError):
    """Another task already has this name."""


class NoLoop(PerdureError, RuntimeError):
    """An async verb was called outside a running event loop."""


class NoContext(PerdureError, LookupError):
    """There is no handler around this code."""


class NoApp(PerdureError, LookupError):
    """The task belongs to a Registry that no app has included."""


def words_of(error: BaseException) -> str:
    """What an error says, as a text that every store can keep. Its `__str__` may be the user's, and break."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except KeyboardInterrupt:
        raise
    except BaseException as broke:
        return f"this {type(error).__name__} has no words: its __str__ raised {type(broke).__name__}"
