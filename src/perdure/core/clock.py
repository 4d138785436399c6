"""Instants and durations. Inside Perdure both are integers of microseconds; an instant counts from the epoch (UTC).
Floats, timedeltas and datetimes exist only at the public API. Integers compare, add and store the same way everywhere.

Callers give durations, and the store adds its own clock. A test passes its own `Clock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Protocol

from ..errors import InvalidCall

Duration = float | timedelta  # at the public API: seconds, or a timedelta

SECOND = 1_000_000
LONGEST = 100 * 365 * 86_400 * SECOND  # a century: longer is a mistake of units
LATEST = 6_658_588_800_000_000  # the end of the year 2180: Redis cannot order much later instants exactly
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Clock(Protocol):
    """Anything that knows the time. `now` returns an aware datetime."""

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def micros(self) -> int:
        return time.time_ns() // 1000


SYSTEM = SystemClock()


def reader(clock: Clock | None) -> MicrosReader:
    """A function that reads `clock` in microseconds; without a clock, the machine's."""
    if clock is None:
        return SYSTEM.micros
    fast = getattr(clock, "micros", None)
    if fast is not None:
        return fast  # type: ignore[no-any-return]
    return lambda: instant_of(clock.now())


class MicrosReader(Protocol):
    def __call__(self) -> int: ...


def instant_of(moment: datetime, name: str = "datetime") -> int:
    """Microseconds since the epoch of an aware datetime; a naive one is refused."""
    if not isinstance(moment, datetime):
        raise InvalidCall(f"{name} must be an aware datetime, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidCall(f"{name}={moment!r} has no timezone; use an aware datetime, e.g. datetime.now(timezone.utc)")
    return (moment - _EPOCH) // _MICROSECOND


def due_instant_of(moment: datetime, name: str = "datetime") -> int:
    """The same for an instant at which a job becomes due: one that not every store can keep is refused on all of them."""
    return check_due(instant_of(moment, name), name)


def check_due(instant: int, name: str) -> int:
    if instant >= LATEST:
        raise InvalidCall(
            f"{name} lies beyond the year 2180, where not every store can order jobs; choose an earlier instant"
        )
    return instant


def datetime_of(instant: int) -> datetime:
    """The aware UTC datetime of an instant; the last or first that there is, for one that is out of reach."""
    try:
        return _EPOCH + timedelta(microseconds=instant)
    except OverflowError:
        return _LAST if instant > 0 else _FIRST


def optional_datetime(instant: int | None) -> datetime | None:
    return None if instant is None else datetime_of(instant)


def micros_of(duration: float | timedelta, name: str = "duration", *, positive: bool = False) -> int:
    """Microseconds of a duration in seconds or of a timedelta. Negative, endless and absurd ones are refused."""
    if isinstance(duration, timedelta):
        micros = duration // _MICROSECOND
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidCall(f"{name} must be seconds or a timedelta, not {type(duration).__name__}")
    elif not isfinite(duration):
        raise InvalidCall(f"{name} must be finite, not {duration}")
    else:
        micros = round(duration * SECOND)
    if micros < 0 or (positive and micros == 0):
        raise InvalidCall(f"{name} must {'be positive' if positive else 'not be negative'}, it is {duration!r}")
    if micros > LONGEST:
        raise InvalidCall(f"{name}={duration!r} is longer than a century; durations are seconds")
    return micros


def seconds_of(micros: int | None) -> float | None:
    return None if micros is None else micros / SECOND


_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)

# seconds that also pass while the machine sleeps, where the system has such a clock
boottime: Callable[[], float] = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
