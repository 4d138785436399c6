"""Declarations of schedules, by a decorator or at run time, and the stored schedule that follows from one for an app."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..client.call_list import bound_to
from ..core.clock import instant_of
from ..core.validation import check_name
from ..errors import InvalidCall
from ..tasks.options import unique_text
from ..tasks.task import Call, Task
from .cron import check_cron
from .schedule import Schedule

if TYPE_CHECKING:
    from ..app import Perdure


@dataclass(frozen=True)
class ScheduleRule:
    """When a schedule fires, checked."""

    cron: str
    timezone: str
    start: int | None
    end: int | None
    max_runs: int | None
    missed: Literal["skip", "once", "all"]
    overlap: Literal["allow", "skip"]


@dataclass(frozen=True)
class ScheduleDeclaration:
    """A schedule as it was declared; without a name it has its task's."""

    name: str | None
    task: Task[..., Any]
    payload: str
    rule: ScheduleRule

    @classmethod
    def of(cls, name: str | None, call: Call[Any], rule: ScheduleRule) -> ScheduleDeclaration:
        return cls(name, call._task, call._payload, rule)

    @property
    def call(self) -> Call[Any]:
        return Call(self.task, self.payload)

    @property
    def key(self) -> str:
        return self.name or self.task._declared.name

    def same_again(self, other: ScheduleDeclaration) -> bool:
        """Whether one replaces the other: the same declaration twice, or code that was reloaded."""
        one, two = self.task._declared, other.task._declared
        if one is two:
            return self.rule == other.rule and self.payload == other.payload
        return one.identity == two.identity


def rule_of(
    cron: object,
    *,
    timezone: object,
    start: datetime | None,
    end: datetime | None,
    max_runs: int | None,
    missed: Any,
    overlap: Any,
) -> ScheduleRule:
    """The rule, if it makes sense."""
    ticks = check_cron(cron, timezone)
    if ticks.after(time.time_ns() // 1000) is None:
        raise InvalidCall(f"cron {cron!r} never ticks: there is no such day within fifty years")
    first = None if start is None else instant_of(start, "start")
    last = None if end is None else instant_of(end, "end")
    if first is not None and last is not None and last < first:
        raise InvalidCall(f"end={end} is before start={start}")
    if max_runs is not None and (isinstance(max_runs, bool) or not isinstance(max_runs, int) or max_runs < 1):
        raise InvalidCall(f"max_runs must be a whole number of at least 1, or None for no end; it is {max_runs!r}")
    if missed not in ("skip", "once", "all"):
        raise InvalidCall(f"missed={missed!r} is none of 'skip', 'once', 'all'")
    if overlap not in ("allow", "skip"):
        raise InvalidCall(f"overlap={overlap!r} is none of 'allow', 'skip'")
    return ScheduleRule(str(cron), str(timezone), first, last, max_runs, missed, overlap)


def check_call(call: object, name: str | None) -> Call[Any]:
    """A call that can be made again and again."""
    if isinstance(call, Task):
        raise InvalidCall(f"a schedule takes a call: {call._spelled()}.call(…), not the task itself")
    if not isinstance(call, Call):
        raise InvalidCall(f"a schedule takes a call, task.call(…), not {type(call).__name__}")
    for option in ("connection", "at", "after"):
        if call._task._options.get(option) is not None:
            raise InvalidCall(f"schedule {name or call._task._declared.name}: a call with {option}= cannot recur")
    return call


def schedule_of(app: Perdure, name: str, call: Call[Any], rule: ScheduleRule) -> Schedule:
    """The schedule as it is stored: the rule, and everything about its jobs but their ids."""
    bound = bound_to(app, call)
    job = msgspec.structs.replace(bound.plan.job(call._payload, bound.definition.arguments_hash), id="")
    if rule.overlap == "skip":
        if job.unique_scope is not None:
            raise InvalidCall(f'schedule {name}: overlap="skip" needs the unique key of its jobs for itself')
        key = unique_text(job.task, job.tenant, f"schedule {name}")
        job = msgspec.structs.replace(job, unique_key=key, unique_scope="active")
    return Schedule(
        cron=rule.cron,
        timezone=rule.timezone,
        start=rule.start,
        end=rule.end,
        max_runs=rule.max_runs,
        missed=rule.missed,
        overlap=rule.overlap,
        job=job,
    )


def declared_schedules(app: Perdure) -> dict[str, Schedule]:
    """The schedules that an app's code declares, by name."""
    found: dict[str, Schedule] = {}
    for name, recurring in app._all_recurring():
        own = name or bound_to(app, recurring.call).definition.name
        if own in found:
            raise InvalidCall(f"two schedules are named {own!r}; give one of them another name=")
        found[own] = schedule_of(app, schedule_name(own), recurring.call, recurring.rule)
    return found


def schedule_name(name: object) -> str:
    return check_name(name, "schedule name")
