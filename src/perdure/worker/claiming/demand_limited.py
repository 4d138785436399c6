"""Decides when to claim jobs under limits.

They have a want of their own, because the store decides whether one may start. If a task has a rate, none of its jobs is
claimed ahead of a free slot, because a start counts when it is claimed. If there are jobs of both kinds, each kind gets half
of the free slots. If there are only limited ones, they get all but one, which goes on asking for the others. Jobs may be
stored with limits that their task no longer has, so now and then the worker asks for all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from ...core.job import Routing
from ...storage.contract import Want
from ..leases.held_jobs import HeldJobs

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

ALL_TASKS_EVERY = 5.0  # seconds between claims for limited jobs of tasks that have no limits now


class LimitedDemand:
    """The wants of a worker for jobs under limits."""

    def __init__(
        self,
        definitions: Mapping[str, TaskDefinition],
        queues: tuple[str, ...] | None,
        tasks: tuple[str, ...] | None,
        routing: Routing,
        held: HeldJobs,
    ) -> None:
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self._held = held
        known = {name: each for name, each in definitions.items() if tasks is None or name in tasks}
        self._known = known
        self._names = tuple(sorted(name for name, each in known.items() if each.options.get("limit") is not None))
        # whether a job may be claimed before its slot is free
        self.ahead = not any(known[name].rated for name in self._names)
        self._ran_dry = False
        self._all_tasks_at = 0.0
        self.flowing = False  # jobs under limits came when last asked for; unless `ahead`, others are not either then

    @property
    def named(self) -> bool:
        """Whether tasks are known that have limits."""
        return bool(self._names)

    def assume_more(self) -> None:
        """The store may have a job that may start."""
        self._ran_dry = False

    def open(self) -> bool:
        """Whether there may be anything to claim, given a free slot."""
        return not self._ran_dry and (bool(self._names) or monotonic() >= self._all_tasks_at)

    def want(self, slots: int) -> Want | None:
        """What to claim with so many free slots."""
        if slots <= 0 or not self.open():
            return None
        tasks: tuple[str, ...] | None = self._names
        if monotonic() >= self._all_tasks_at:
            self._all_tasks_at = monotonic() + ALL_TASKS_EVERY
            tasks = self._tasks
        names = self._known if tasks is None else tasks
        narrow = [each for each in {self._known[name] for name in names if name in self._known} if each.concurrency]
        counts = self._held.counts(narrow) if narrow else {}
        rooms = {each: (each.concurrency or 0) - counts[each] for each in narrow}
        full = {each for each, room in rooms.items() if room <= 0}
        if full:
            tasks = tuple(name for name in names if self._known[name] not in full)
        asked = [room for each, room in rooms.items() if room > 0]
        limit = min([slots, *asked])
        return Want(limit, self._queues, tasks, self._routing, limited=True) if tasks is None or tasks else None

    def learn(self, want: Want, returned: int) -> bool:
        """A claim with this want returned so many jobs. True when there may be more."""
        self._ran_dry = returned < want.limit
        self.flowing = returned > 0
        return not self._ran_dry
