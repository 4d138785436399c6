"""Outcomes: what a handler may raise to end its attempt other than by a value or a failure.

An `Outcome` is a BaseException, so that a handler's own `except Exception` lets it pass.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, overload

from ..errors import InvalidCall
from .clock import Duration, due_instant_of, micros_of

LONGEST_REASON = 2_000  # characters


class Outcome(BaseException):
    """The root of what a handler may raise on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__  # args are words, not what __init__ takes


class _Later(Outcome):
    """An outcome with a time: a delay from now, or an instant."""

    delay: int | None = None
    at: int | None = None

    def _set_time(self, delay: Duration | None, at: datetime | None) -> None:
        name = type(self).__name__
        if delay is not None and at is not None:
            raise InvalidCall(f"{name} takes a delay or at=, not both")
        self.delay = None if delay is None else micros_of(delay, f"{name} delay")
        self.at = None if at is None else due_instant_of(at, f"{name} at")


class Retry(_Later):
    """A failure with a delay of its own: `raise Retry(30)`. Without a delay, the task's backoff."""

    @overload
    def __init__(self, delay: Duration | None = None, *, reason: str = "") -> None: ...
    @overload
    def __init__(self, *, at: datetime, reason: str = "") -> None: ...
    def __init__(self, delay: Duration | None = None, *, at: datetime | None = None, reason: str = "") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason or "the handler asked for a retry")
        self._set_time(delay, at)


class Snooze(_Later):
    """Come back later, free of charge: `raise Snooze(30)`."""

    @overload
    def __init__(self, delay: Duration, *, reason: str = "") -> None: ...
    @overload
    def __init__(self, *, at: datetime, reason: str = "") -> None: ...
    def __init__(self, delay: Duration | None = None, *, at: datetime | None = None, reason: str = "") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason or "the handler snoozed")
        self._set_time(delay, at)
        if delay is None and at is None:
            raise InvalidCall("Snooze needs a delay or at=")


class Skip(Outcome):
    """There was nothing to do: the job ends as skipped."""

    def __init__(self, reason: str = "", /, *, result: object = None) -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)
        self.result = result


class Dead(Outcome):
    """No further attempt can help: the job becomes a dead letter at once."""

    def __init__(self, reason: str, /) -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)


def _text(reason: object) -> str:
    """A reason that every store can keep. Handlers hand over errors and numbers, too."""
    return str(reason)[:LONGEST_REASON].encode("utf-8", "backslashreplace").decode()
