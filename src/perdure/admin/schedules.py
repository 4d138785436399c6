"""`app.schedules`: list, write, pause and preview schedules at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..client.handle import JobHandle
from ..core.clock import datetime_of, optional_datetime
from ..core.verb import verb
from ..errors import InvalidCall, NotFound, StoreError
from ..schedules.cron import check_cron
from ..schedules.declaration import check_call, rule_of, schedule_name, schedule_of
from ..schedules.reconcile import TRIES, all_rows, readable
from ..schedules.schedule import KIND, WAKE, Schedule, hash_of, job_of, preview, replace_rule, start_from, write
from ..storage.contract import KvEntry, KvWrite, Storage
from ..tasks.task import Call
from .base import AdminView

if TYPE_CHECKING:
    from .._sync import SyncSchedules

MOST_PREVIEWED = 1000


@dataclass(frozen=True)
class ScheduleInfo:
    """A schedule now. `next_at` is None while it is paused or an orphan, and when it is over. An orphan was
    declared in code that is gone, and does not fire. `skipped` counts ticks that found an earlier one's job at work.
    `unreadable`: its row cannot be read, and it does not fire until it is put again."""

    name: str
    cron: str
    task: str
    next_at: datetime | None
    timezone: str = "UTC"
    paused: bool = False
    orphan: bool = False
    declared: bool = False
    last_at: datetime | None = None
    runs: int = 0
    skipped: int = 0
    max_runs: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    missed: Literal["skip", "once", "all"] = "skip"
    overlap: Literal["allow", "skip"] = "allow"
    unreadable: bool = False


class Schedules(AdminView):
    """`app.schedules`: put, change, pause and list recurring rules.

    >>> from perdure import Perdure
    >>> app = Perdure("memory://")
    >>> @app.task
    ... async def clean(days: int) -> None: ...
    >>> app.schedules.sync.put("nightly", "0 3 * * *", clean.call(30))
    >>> [(schedule.name, schedule.cron) for schedule in app.schedules.sync.list()]
    [('nightly', '0 3 * * *')]
    """

    @property
    def sync(self) -> SyncSchedules:
        """The blocking forms of its verbs."""
        from .._sync import SyncSchedules

        return SyncSchedules(self)

    @verb
    async def put(
        self,
        name: str,
        cron: str,
        call: Call[Any],
        /,
        *,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        missed: Literal["skip", "once", "all"] = "skip",
        overlap: Literal["allow", "skip"] = "allow",
    ) -> None:
        """Store a schedule, in place of one of this name. The same again changes nothing; otherwise it keeps its
        pause and its count."""
        schedule_name(name)
        rule = rule_of(cron, timezone=timezone, start=start, end=end, max_runs=max_runs, missed=missed, overlap=overlap)
        new = schedule_of(self._runtime.app, name, check_call(call, name), rule)

        def change(old: Schedule | None, now: int) -> Schedule | None:
            if old is None:
                return start_from(new, now)
            same = old.declared is None and hash_of(old) == hash_of(new)
            return None if same else replace_rule(old, new, now)

        await self._write(name, change, replaces=True)

    @verb
    async def reschedule(self, name: str, cron: str, /) -> None:
        """Give a schedule another expression, from now on."""

        def change(old: Schedule, now: int) -> Schedule:
            check_cron(cron, old.timezone)
            return start_from(msgspec.structs.replace(old, cron=cron), now)

        check_cron(cron, "UTC")
        await self._change(name, change)

    @verb
    async def remove(self, name: str, /) -> None:
        """Take a schedule off the record; jobs that it made stay. One that code declares comes back with the next worker."""
        storage = await self._storage()
        if not await storage.kv_read(KIND, [schedule_name(name)]):
            await self._known(storage, name)
            raise NotFound(f"schedule {name!r} is not on record, only declared in code: remove it there, or pause it")
        await storage.kv_write([KvWrite(KIND, name, None)])

    @verb
    async def pause(self, name: str, /) -> None:
        """Fire no more until it is resumed. Durable."""
        await self._change(name, lambda old, now: msgspec.structs.replace(old, paused=True))

    @verb
    async def resume(self, name: str, /) -> None:
        """End a pause: it goes on with its next tick from now. What came meanwhile was not missed."""

        def change(old: Schedule, now: int) -> Schedule | None:
            return start_from(msgspec.structs.replace(old, paused=False), now) if old.paused else None

        await self._change(name, change)

    @verb
    async def run_now(self, name: str, /) -> JobHandle[Any]:
        """Enqueue its job now, beside its ticks. With overlap="skip" the handle may be that of the job at work."""
        schedule = await self._known(await self._storage(), name)
        client = self._runtime.client
        (result,) = await client.enqueue_jobs([job_of(name, schedule, None)])
        if schedule.overlap == "skip":
            await self._change(name, lambda old, now: msgspec.structs.replace(old, last_job=result.id))
        return client.handle_of(result, self._runtime.app.definitions().get(schedule.job.task))

    @verb
    async def list(self) -> tuple[ScheduleInfo, ...]:
        """All schedules by name, including those that the app's code declares and no worker has stored yet."""
        storage = await self._storage()
        now = await storage.now()
        declared = {name: _on_record(new, now) for name, new in self._runtime.declared_schedules().items()}
        stored = {row.name: readable(row) async for row in all_rows(storage)}
        return tuple(_info(name, schedule) for name, schedule in sorted({**declared, **stored}.items(), key=_name))

    @verb
    async def preview(self, name: str, n: int = 5, /) -> tuple[datetime, ...]:
        """Its next n ticks; for one that is paused, those it would have if it were resumed now."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_PREVIEWED:
            raise InvalidCall(f"n must be a whole number from 1 to {MOST_PREVIEWED}, it is {n!r}")
        storage = await self._storage()
        schedule = await self._known(storage, name)
        return tuple(datetime_of(tick) for tick in preview(schedule, await storage.now(), n))

    def _spelled(self) -> str:
        return "app.schedules"

    # -- below ---------------------------------------------------------------------------------------
    async def _change(self, name: str, change: Callable[[Schedule, int], Schedule | None]) -> None:
        def known(old: Schedule | None, now: int) -> Schedule | None:
            if old is None:
                raise _unknown(name)
            return change(old, now)

        await self._write(schedule_name(name), known)

    async def _write(
        self, name: str, change: Callable[[Schedule | None, int], Schedule | None], *, replaces: bool = False
    ) -> None:
        """Read, change and write until nobody came between; None changes nothing. `replaces`: also one that cannot be
        read; `change` gets None for it."""
        storage = await self._storage()
        for _ in range(TRIES):
            row, old = await self._found(storage, name)
            if row is not None and old is None and not replaces:
                raise _unreadable(name)
            new = change(old, await storage.now())
            if new is None:
                return
            if all(await storage.kv_write([write(name, new, 0 if row is None else row.version)])):
                await storage.signal([WAKE])
                return
        raise StoreError(f"schedule {name} was written by others {TRIES} times in a row; try again")

    async def _known(self, storage: Storage, name: str) -> Schedule:
        row, schedule = await self._found(storage, schedule_name(name))
        if schedule is None:
            raise _unknown(name) if row is None else _unreadable(name)
        return schedule

    async def _found(self, storage: Storage, name: str) -> tuple[KvEntry | None, Schedule | None]:
        """The stored schedule, or the one that the app's code declares and no worker has stored yet. A row without a
        schedule cannot be read."""
        rows = await storage.kv_read(KIND, [name])
        if rows:
            return rows[0], readable(rows[0])
        declared = self._runtime.declared_schedules().get(name)
        return None, None if declared is None else _on_record(declared, await storage.now())


def _on_record(declared: Schedule, now: int) -> Schedule:
    """A declared schedule as a worker would store it now."""
    return start_from(msgspec.structs.replace(declared, declared=hash_of(declared)), now)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}; app.schedules.list() shows those there are")


def _unreadable(name: str) -> StoreError:
    return StoreError(f"schedule {name!r} cannot be read: put it again, or remove it")


def _name(entry: tuple[str, Schedule | None]) -> str:
    return entry[0]


def _info(name: str, schedule: Schedule | None) -> ScheduleInfo:
    if schedule is None:
        return ScheduleInfo(name, "", "", None, unreadable=True)
    return ScheduleInfo(
        name=name,
        cron=schedule.cron,
        task=schedule.job.task,
        next_at=optional_datetime(schedule.due_at),
        timezone=schedule.timezone,
        paused=schedule.paused,
        orphan=schedule.orphan is not None,
        declared=schedule.declared is not None,
        last_at=optional_datetime(schedule.last),
        runs=schedule.runs,
        skipped=schedule.skipped,
        max_runs=schedule.max_runs,
        start=optional_datetime(schedule.start),
        end=optional_datetime(schedule.end),
        missed=schedule.missed,
        overlap=schedule.overlap,
    )
