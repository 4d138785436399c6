"""Computes how many workers would clear the backlog in time: a hint for autoscalers.

Each worker writes with its heartbeat how many jobs of each queue it ended per second, and how long a job kept a slot. So
the slots that a queue needs are (jobs that are due / seconds to clear them in + jobs that end per second now) × seconds of
a slot per job, and never fewer than run now. The second part keeps the workers that the present flow needs. A queue whose
jobs have never run is worth one worker, which will measure them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.clock import SECOND
from ..core.job import State
from ..errors import InvalidCall
from ..storage.contract import Filter, QueueRow, QueueSettings, Storage
from .workers import Member, fleet

DEFAULT_TARGET = 60.0  # seconds
PROMOTED = 500


@dataclass(frozen=True)
class QueueScale:
    """A queue as a scaler sees it. `depth`: jobs that wait, for a time or another job too; `ready`: those that are due.
    `oldest`: seconds that the oldest of them has been due. `rate`: jobs that ended a second, over about a minute.
    `seconds`: how long one keeps a slot, None if nobody knows yet. `workers`: how many would do, for this queue alone."""

    name: str
    paused: bool
    depth: int
    oldest: float | None
    ready: int
    running: int
    rate: float
    seconds: float | None
    workers: int


@dataclass(frozen=True)
class Scale:
    """`workers` would clear every backlog within `target` seconds; `alive` are there."""

    target: float
    workers: int
    alive: int
    queues: tuple[QueueScale, ...]


async def scale(store: Storage, target: float = DEFAULT_TARGET, also: Collection[str] = ()) -> Scale:
    """Look at queues and workers, and at the queues of these names though they may be empty. Jobs whose time has come are
    made ready first: where no worker is, nobody else does it."""
    if not 0 < target < math.inf:
        raise InvalidCall(f"target must be a number of seconds greater than 0, it is {target!r}")
    await store.promote(PROMOTED)
    members = await fleet(store)
    needs = [await _need(store, row, members, target) for row in await _lines(store, members, also)]
    return Scale(target, _whole(sum(need for _, need in needs)), len(members), tuple(queue for queue, _ in needs))


async def _lines(store: Storage, members: Sequence[Member], also: Collection[str]) -> list[QueueRow]:
    """The queues that the store lists, those that were emptied lately, and those that are asked for."""
    emptied = {*also, *(name for member in members for name in member.ended)}
    rows = {name: QueueRow(QueueSettings(name), 0, None) for name in emptied}
    rows |= {row.settings.name: row for row in await store.queues()}
    return [rows[name] for name in sorted(rows)]


async def _need(store: Storage, row: QueueRow, members: Sequence[Member], target: float) -> tuple[QueueScale, float]:
    """A queue, and the workers that it needs, in parts of a worker: several queues share one."""
    name, paused = row.settings.name, row.settings.paused
    ready = await store.count(Filter(states=(State.READY,), queue=name)) if row.depth else 0
    running = await store.count(Filter(states=(State.RUNNING,), queue=name))
    told = [member.ended[name] for member in members if name in member.ended]
    rate, seconds = sum(each for each, _ in told), _mean(told)
    need = _workers(0 if paused else ready, running, rate, seconds, _slots(members, name), target)
    oldest = None if row.oldest is None else row.oldest / SECOND
    queue = QueueScale(name, paused, row.depth, oldest, ready, running, round(rate, 3), seconds, _whole(need))
    return queue, need


def _workers(due: int, running: int, rate: float, seconds: float | None, slots: float, target: float) -> float:
    if seconds is None:  # nobody has run such a job yet, or long ago
        return max(running / slots, 1.0 if due else 0.0)
    flow = rate if due or running else 0.0
    return max(running / slots, (due / target + flow) * seconds / slots, 1 / slots if due else 0.0)


def _slots(members: Sequence[Member], queue: str) -> float:
    """Of a worker that serves the queue, on average."""
    serving = [member.slots for member in members if member.serves(queue)]
    return sum(serving) / len(serving) if serving else 1.0


def _mean(told: Sequence[tuple[float, float]]) -> float | None:
    """Seconds that a job keeps a slot; those workers count most in which most jobs end."""
    if not told:
        return None
    weights = [max(rate, 0.001) for rate, _ in told]
    return sum(weight * seconds for weight, (_, seconds) in zip(weights, told, strict=True)) / sum(weights)


def _whole(workers: float) -> int:
    return math.ceil(workers - 1e-9)
