"""Reports about a job: the input of `lifecycle.decide`, which also says who may report what."""

from __future__ import annotations

import msgspec

from .record import Fault, NewJob


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is JSON text."""

    result: str | None = None
    started_at: int | None = None


class Continued(msgspec.Struct, frozen=True, gc=False):
    """The handler returned Continue: this job is done, and these go on with its chain, which ends with the last of them.
    Both are stored, or neither."""

    jobs: tuple[NewJob, ...]
    started_at: int | None = None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed. `retryable` is the task's own judgement (retry_on); delay or at override its backoff."""

    fault: Fault
    retryable: bool = True
    delay: int | None = None
    at: int | None = None
    started_at: int | None = None


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """The handler wants to come back later, free of charge."""

    delay: int | None = None
    at: int | None = None
    reason: str | None = None
    started_at: int | None = None


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """There was nothing to do."""

    reason: str | None = None
    result: str | None = None
    started_at: int | None = None


class Died(msgspec.Struct, frozen=True, gc=False):
    """The handler decided that no further attempt can help."""

    reason: str
    fault: Fault | None = None
    started_at: int | None = None


class HandedBack(msgspec.Struct, frozen=True, gc=False):
    """The holder gives the job back untouched or unfinished, free of charge: prefetched, or at shutdown."""

    reason: str | None = None


class Stopped(msgspec.Struct, frozen=True, gc=False):
    """The holder's code has stopped after its job was ended from outside: slot and key are free now."""


class LeaseLapsed(msgspec.Struct, frozen=True, gc=False):
    """Upkeep found the lease lapsed. `charged`: this job alone ran when its worker was lost.
    `suspect`: it was one of several."""

    fault: Fault | None = None
    charged: bool = False
    suspect: bool = False


class RunnerLost(msgspec.Struct, frozen=True, gc=False):
    """Whoever started the process that ran this job saw it die before its lease was over. The hold guards this report:
    nobody else can have the job. `charged` and `suspect` as in LeaseLapsed."""

    fault: Fault | None = None
    charged: bool = False
    suspect: bool = False
    started_at: int | None = None


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The job was not started within its `expires`."""


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """Somebody cancelled the job."""

    reason: str | None = None


class Completed(msgspec.Struct, frozen=True, gc=False):
    """Somebody other than a worker has done the job; `result` is JSON text."""

    result: str | None = None


class Retried(msgspec.Struct, frozen=True, gc=False):
    """A dead letter gets a fresh budget."""


class RunNow(msgspec.Struct, frozen=True, gc=False):
    """A scheduled job is to run now."""


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """The job is to be deleted."""


Report = (
    Succeeded
    | Continued
    | Failed
    | Snoozed
    | Skipped
    | Died
    | HandedBack
    | Stopped
    | LeaseLapsed
    | RunnerLost
    | Expired
    | Cancelled
    | Completed
    | Retried
    | RunNow
    | Deleted
)
