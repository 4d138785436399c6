"""The limits of a task across all workers: the option `limit=`, and how it is stored on a job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from ..errors import InvalidCall
from .clock import Duration, micros_of
from .job import tenant_root
from .validation import KEY_BYTES

SEPARATOR = "\x1f"  # never in a task's or tenant's name
MOST = 2**31 - 1

_UNITS: Final = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600} | {
    "d": 86400,
    "day": 86400,
}
_UNITS_TOLD = "s, min, h or d"
_RATE = re.compile(r"\s*(\d{1,10})\s*/\s*(\d{0,9})\s*([a-z]+)\s*")


@dataclass(frozen=True)
class Limit:
    """How many jobs of a task may run at once, or start in a time, over all workers.

    `rate` is "100/s", "10/min", "5/30s", or (100, seconds): in no window of that length do more start. `per`: each
    tenant (up to its "/"), key or routing key has the limit for itself; jobs without one share theirs.

    >>> Limit(max_running=2, rate="100/s", per="tenant").per
    'tenant'
    """

    max_running: int | None = None
    rate: str | tuple[int, Duration] | None = None
    per: Literal["tenant", "key", "routing_key"] | None = None

    def __post_init__(self) -> None:
        if self.max_running is None and self.rate is None:
            raise InvalidCall("Limit needs max_running=, rate=, or both")
        if self.max_running is not None:
            _check_count(self.max_running, "Limit max_running")
        if self.per not in (None, "tenant", "key", "routing_key"):
            raise InvalidCall(f'Limit per={self.per!r} is none of "tenant", "key", "routing_key" or None')
        self.starts()

    def starts(self) -> tuple[int, int] | None:
        """The rate as a number of starts and a window in microseconds."""
        if self.rate is None:
            return None
        if isinstance(self.rate, str):
            return _parse_rate(self.rate)
        if not isinstance(self.rate, tuple) or len(self.rate) != 2:
            raise InvalidCall(f'Limit rate takes "100/s" or (100, seconds), not {self.rate!r}')
        count, window = self.rate
        _check_count(count, "Limit rate")
        return count, micros_of(window, "Limit rate", positive=True)


def check_limits(value: Any, what: str) -> None:
    """For the option `limit` of a task."""
    for limit in [value] if isinstance(value, Limit) else _check_list(value, what):
        if not isinstance(limit, Limit):
            raise InvalidCall(f"{what} takes Limit(…) or a list of such, not {type(limit).__name__}")


def limits_of(limit: Limit | Sequence[Limit] | None) -> Sequence[Limit]:
    """The limits as a sequence: none, one or several."""
    return () if limit is None else (limit,) if isinstance(limit, Limit) else limit


def limits_text(
    limit: Limit | Sequence[Limit] | None, task: str, key: str | None, tenant: str | None, routing_key: str | None
) -> str | None:
    """What a job runs under, as `storage.rules.limits` reads it."""
    if limit is None:
        return None
    values = {"tenant": tenant_root(tenant), "key": key or "", "routing_key": routing_key or "", None: ""}
    entries: dict[str, tuple[str, int | None, int | None, int | None]] = {}
    for each in limits_of(limit):
        whose = (task, each.per or "", values[each.per])
        if each.max_running is not None:
            name = _key(*whose, "running")
            entries[name] = (name, min(each.max_running, entries.get(name, (name, MOST))[1] or MOST), None, None)
        starts = each.starts()
        if starts is not None:
            name = _key(*whose, f"rate {starts[1]}")
            entries[name] = (name, None, min(starts[0], entries.get(name, (name, None, MOST))[2] or MOST), starts[1])
    return msgspec.json.encode(list(entries.values())).decode() if entries else None


def _key(*parts: str) -> str:
    text = SEPARATOR.join(parts)
    return text if len(text.encode()) <= KEY_BYTES else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _parse_rate(rate: str) -> tuple[int, int]:
    found = _RATE.fullmatch(rate.lower())
    unit = None if found is None else _UNITS.get(found[3], _UNITS.get(found[3].removesuffix("s")))
    if found is None or unit is None:
        raise InvalidCall(f'Limit rate={rate!r} is not of the form "100/s" or "10/30min"; units are {_UNITS_TOLD}')
    count, times = int(found[1]), int(found[2] or 1)
    _check_count(count, f"Limit rate={rate!r}: the number of starts")
    _check_count(times, f"Limit rate={rate!r}: the window")
    return count, micros_of(times * unit, f"Limit rate={rate!r}: the window", positive=True)


def _check_count(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCall(f"{what} must be a whole number, not {type(value).__name__}")
    if not 1 <= value <= MOST:
        raise InvalidCall(f"{what} must be between 1 and {MOST}, it is {value}")


def _check_list(value: Any, what: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidCall(f"{what} takes Limit(…) or a list of such, not {type(value).__name__}")
    return value
