"""A schedule as it is stored, and how it changes at a given instant. Nothing here reads or writes a store.

A schedule is one text with its next tick in it. It fires by one guarded write of that text, with the following tick,
together with the jobs of the ticks that were due. A worker that read the same version and writes second is refused. So
every tick fires once, by whichever worker was first, and there is no leader.

A tick that is more than a minute late was *missed*: no worker ran, or the queue was full. The policy of the schedule
decides what happens then.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

import msgspec

from ..core.clock import SECOND, datetime_of
from ..core.ids import new_id
from ..core.record import NewJob
from ..storage.contract import KvEntry, KvWrite
from .cron import Cron, cron_of

KIND = "schedule"
# what reading a schedule, or working with a value in it, raises where somebody else wrote it
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, RecursionError)
WAKE = "perdure.schedules"  # signalled like a queue when a schedule was written
LATE = 60 * SECOND  # a tick that is later was missed
MOST = 100  # ticks of one schedule that fire in one write

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip"]
Orphaned = Literal["removed", "away"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recurring rule: first its declaration, then its progress."""

    cron: str
    timezone: str = "UTC"
    start: int | None = None
    end: int | None = None
    max_runs: int | None = None
    missed: Missed = "skip"
    overlap: Overlap = "allow"
    job: NewJob  # each tick's, but for its id

    declared: str | None = None  # hash of what was declared in code; None: it was put at run time
    paused: bool = False
    orphan: Orphaned | None = None  # declared in code that is gone, or that no worker has
    next: int | None = None  # the next tick; None: it is over
    last: int | None = None  # the tick that fired last
    runs: int = 0
    skipped: int = 0
    last_job: str | None = None

    @property
    def ticks(self) -> Cron:
        return cron_of(self.cron, self.timezone)

    @property
    def idle(self) -> bool:
        return self.paused or self.orphan is not None

    @property
    def due_at(self) -> int | None:
        return None if self.idle else self.next


class Turn(NamedTuple):
    """What an instant makes of a schedule: the schedule afterwards, and the jobs that are stored with it."""

    schedule: Schedule
    jobs: tuple[NewJob, ...]


_decoder = msgspec.json.Decoder(Schedule)


def read(row: KvEntry) -> Schedule:
    """The schedule of a row. msgspec's errors when a version that we do not know wrote it."""
    return _decoder.decode(row.text)


def text_of(schedule: Schedule) -> str:
    return msgspec.json.encode(schedule).decode()


def write(
    name: str, schedule: Schedule, version: int, *, jobs: tuple[NewJob, ...] = (), due_at: int | None = None
) -> KvWrite:
    """The guarded write of a schedule; `due_at`: when it is due again, if not at its next tick."""
    due = schedule.due_at if due_at is None else due_at
    return KvWrite(KIND, name, text_of(schedule), version, due, jobs=jobs)


def hash_of(schedule: Schedule) -> str:
    """A hash of the rule, without the progress of the schedule."""
    bare = msgspec.structs.replace(schedule.job, id="")
    said = (
        schedule.cron, schedule.timezone, schedule.start, schedule.end, schedule.max_runs, schedule.missed,
        schedule.overlap, bare,
    )  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


# ---- ticks -----------------------------------------------------------------------------------------
def next_after(schedule: Schedule, instant: int) -> int | None:
    """The first tick after this instant that it may fire; None when it is over."""
    if _spent(schedule):
        return None
    if schedule.start is not None:
        instant = max(instant, schedule.start - 1)
    tick = schedule.ticks.after(instant)
    return None if tick is None or (schedule.end is not None and tick > schedule.end) else tick


def start_from(schedule: Schedule, now: int) -> Schedule:
    """The schedule as it goes on from now."""
    return msgspec.structs.replace(schedule, next=next_after(schedule, now))


def replace_rule(old: Schedule, new: Schedule, now: int) -> Schedule:
    """A new rule in place of an old one: the schedule keeps its pause and its count, and its next tick if that is the
    same."""
    kept = msgspec.structs.replace(
        new, paused=old.paused, last=old.last, runs=old.runs, skipped=old.skipped, last_job=old.last_job
    )
    if _timing(old) != _timing(new) or old.next is None:
        return start_from(kept, now)
    return msgspec.structs.replace(kept, next=None if _spent(kept) else old.next)


def _timing(schedule: Schedule) -> tuple[object, ...]:
    return schedule.cron, schedule.timezone, schedule.start, schedule.end


def preview(schedule: Schedule, now: int, count: int) -> list[int]:
    """The ticks to come, at most so many."""
    ticks: list[int] = []
    left = count if schedule.max_runs is None else min(count, schedule.max_runs - schedule.runs)
    tick = schedule.next if not schedule.idle else next_after(schedule, now)
    while tick is not None and len(ticks) < left:
        ticks.append(tick)
        tick = next_after(schedule, tick)
    return ticks


def fire_due(name: str, schedule: Schedule, now: int, *, busy: bool = False) -> Turn:
    """Fire what is due. `busy`: the job that it made last is not over."""
    ticks, following = _due(schedule, now)
    fired = ticks
    if schedule.overlap == "skip":
        fired = [] if busy else ticks[:1]
    jobs = tuple(job_of(name, schedule, tick) for tick in fired)
    moved = msgspec.structs.replace(
        schedule,
        runs=schedule.runs + len(fired),
        skipped=schedule.skipped + len(ticks) - len(fired),
        last=ticks[-1] if ticks else schedule.last,
        last_job=jobs[-1].id if jobs else schedule.last_job,
        next=following,
    )
    return Turn(msgspec.structs.replace(moved, next=None) if _spent(moved) else moved, jobs)


def _spent(schedule: Schedule) -> bool:
    return schedule.max_runs is not None and schedule.runs >= schedule.max_runs


def _due(schedule: Schedule, now: int) -> tuple[list[int], int | None]:
    """The ticks that fire now, the earliest first, and the one after them."""
    tick = schedule.next
    if tick is not None and now - tick > LATE:
        if schedule.missed == "skip":
            tick = next_after(schedule, now - LATE - 1)
        elif schedule.missed == "once":
            tick = schedule.ticks.latest(tick, now if schedule.end is None else min(now, schedule.end))
    left = MOST if schedule.max_runs is None else min(MOST, schedule.max_runs - schedule.runs)
    ticks: list[int] = []
    while tick is not None and tick <= now and len(ticks) < left:
        ticks.append(tick)
        tick = next_after(schedule, tick)
    return ticks, tick


def job_of(name: str, schedule: Schedule, tick: int | None) -> NewJob:
    """The job of a tick; None: one beside them, now. Its meta says which schedule made it, and for which tick."""
    told = {"schedule": name} if tick is None else {"schedule": name, "tick": datetime_of(tick).isoformat()}
    said = {} if schedule.job.meta is None else msgspec.json.decode(schedule.job.meta, type=dict[str, str])
    meta = msgspec.json.encode(said | told).decode()
    at = None if tick is None else tick + schedule.job.delay
    return msgspec.structs.replace(schedule.job, id=new_id(), at=at, delay=0, meta=meta)
