"""Limits across all workers: decides which jobs may start now.

A job's `limits` is a JSON array with an entry per limit: [key, most running at once or null, starts in a window or null,
the window in microseconds or null]. A ready job under limits is parked: it waits outside the lanes of a claim, among those
with the very same limits (its *gate*), and is claimed only by a want that asks for such jobs.

- Running under a key: jobs that carry a hold and have the key, ended ones whose holder has not stopped included. It is
  counted, so that nothing can drift; who keeps a number changes it with the hold, in one step, and counts anew now and then.
- Starts under a key: the claims of the last window, by the store's clock, each remembered with its instant. Those that
  lie in the future (the clock went back) count as made now.

Nothing here reads or writes a store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import merge
from typing import Annotated

import msgspec

ClaimOrder = tuple[int, int, str]  # -priority, rank, id: the order of a claim
Starts = tuple[tuple[int, int], ...]  # (instant, how many), oldest first


class StoredLimit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One limit as it is stored on a job."""

    key: str
    most: int | None = None
    starts: int | None = None
    window: int | None = None


class Use(msgspec.Struct, frozen=True, gc=False):
    """How much of a key is used."""

    running: int = 0
    starts: Starts = ()


_UNUSED = Use()


class Gate(msgspec.Struct, frozen=True, gc=False):
    """Parked jobs with the same limits, best first: as many as could be wanted."""

    limits: str
    places: Sequence[ClaimOrder]


class Closed(msgspec.Struct, frozen=True, gc=False):
    """Why a gate lets nobody through: the key that is used up, and when a rate lets the next one start (None: when one that
    runs under the key is over)."""

    key: str
    opens_at: int | None


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """Who may start: ids in claim order; the starts of each key under a rate, as they are now; the gates that are closed."""

    ids: list[str]
    starts: dict[str, Starts]
    closed: dict[str, Closed]


def admit_jobs(gates: Sequence[Gate], used: Mapping[str, Use], limit: int, now: int) -> Admitted:
    """Admit the best jobs, at most `limit`, none beyond its limits."""
    room = _Room(used, now)
    ids = _through_one(gates[0], room, limit) if len(gates) == 1 else _through_several(gates, room, limit)
    why = {gate.limits: room.closed(gate.limits) for gate in gates}
    return Admitted(ids, room.changed, {limits: closed for limits, closed in why.items() if closed is not None})


def _through_one(gate: Gate, room: _Room, limit: int) -> list[str]:
    """Admit as many as there is room for: no other gate competes."""
    count = min(limit, len(gate.places), room.left(gate.limits))
    if count > 0:
        room.take(gate.limits, count)
    return [place[2] for place in gate.places[:count]]


def _through_several(gates: Sequence[Gate], room: _Room, limit: int) -> list[str]:
    ids: list[str] = []
    closed: set[str] = set()
    lines = [[(place, gate.limits) for place in gate.places] for gate in gates]
    for place, limits in merge(*lines):
        if len(ids) >= limit:
            break
        if limits in closed:
            continue
        if room.closed(limits) is None:
            room.take(limits)
            ids.append(place[2])
        else:
            closed.add(limits)
    return ids


def why_closed(limits: str, used: Mapping[str, Use], now: int) -> Closed | None:
    """Why a gate is closed now; None: it is open."""
    return _Room(used, now).closed(limits)


def limits_of(text: str | None) -> tuple[StoredLimit, ...]:
    return () if text is None else _parse(text)


def keys_of(texts: Iterable[str | None]) -> list[str]:
    """The keys of these limits, each once, in order of their text."""
    return sorted({limit.key for text in texts for limit in limits_of(text)})


def recent_starts(starts: Starts, window: int, now: int) -> Starts:
    """The starts that count in a window that ends now."""
    return tuple((min(at, now), n) for at, n in starts if at > now - window)


class _Room:
    """What is left under each key while jobs are admitted."""

    def __init__(self, used: Mapping[str, Use], now: int) -> None:
        self._used = used
        self._now = now
        self._taken: dict[str, int] = {}
        self.changed: dict[str, Starts] = {}

    def closed(self, limits: str) -> Closed | None:
        for limit in limits_of(limits):
            if limit.most is not None and self._running(limit) >= limit.most:
                return Closed(limit.key, None)
            if limit.starts is not None and limit.window is not None:
                counted = self._counted(limit.key, limit.window)
                over = sum(n for _, n in counted) + 1 - limit.starts
                if over > 0:
                    return Closed(limit.key, _free_again(counted, over) + limit.window)
        return None

    def left(self, limits: str) -> int:
        """How many may start."""
        left = sys.maxsize
        for limit in limits_of(limits):
            if limit.most is not None:
                left = min(left, limit.most - self._running(limit))
            if limit.starts is not None and limit.window is not None:
                counted = self._counted(limit.key, limit.window)
                left = min(left, limit.starts - sum(n for _, n in counted))
        return max(left, 0)

    def take(self, limits: str, jobs: int = 1) -> None:
        for limit in limits_of(limits):
            self._taken[limit.key] = self._taken.get(limit.key, 0) + jobs
            if limit.starts is not None and limit.window is not None:
                counted = recent_starts(self._starts(limit.key), limit.window, self._now)
                self.changed[limit.key] = _add_starts(counted, self._now, jobs)

    def _running(self, limit: StoredLimit) -> int:
        return self._used.get(limit.key, _UNUSED).running + self._taken.get(limit.key, 0)

    def _counted(self, key: str, window: int) -> Starts:
        starts = self._starts(key)
        counted = recent_starts(starts, window, self._now)
        if starts and starts[-1][0] > self._now:  # the clock went back: from now on they are of this moment
            self.changed[key] = counted
        return counted

    def _starts(self, key: str) -> Starts:
        return self.changed.get(key, self._used.get(key, _UNUSED).starts)


def _free_again(starts: Starts, over: int) -> int:
    """The instant of the start with which `over` of them are past."""
    for at, n in starts:
        over -= n
        if over <= 0:
            return at
    raise AssertionError("more starts are over than there are")


def _add_starts(starts: Starts, now: int, more: int) -> Starts:
    if starts and starts[-1][0] == now:
        return (*starts[:-1], (now, starts[-1][1] + more))
    return (*starts, (now, more))


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[StoredLimit, ...]:
    """The limits in a text. One that cannot be read lets nobody start: its jobs are set aside when they are inspected."""
    try:
        return msgspec.json.decode(text, type=tuple[StoredLimit, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return (StoredLimit(text, most=0),)


def starts_of(text: str | None) -> Starts:
    """Starts as they are stored, a JSON array. What cannot be read counts as none: a rate is too generous once."""
    try:
        return () if text is None else tuple(_starts.decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_starts = msgspec.json.Decoder(list[tuple[_Number, _Number]])
