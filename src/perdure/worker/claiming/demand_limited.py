"""When to ask the store for jobs under limits.

They are claimed by a want of their own, because whether one may start is the store's to say. Where a task has a rate, none
is claimed ahead of its slot, because a start counts when it is claimed. Where there are jobs of both kinds, each kind gets
half of the slots that are free; where there are only limited ones, they get all but one, which goes on asking for the
others. Jobs may be on record under limits that their task no longer has, so now and then all tasks
are asked for.
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

RARELY = 5.0  # seconds between questions for jobs of tasks that have no limits


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
        # a job may wait here for its slot
        self.ahead = not any(known[name].rated for name in self._names)
        self._dry = False
        self._rarely_at = 0.0
        self.flowing = False  # jobs under limits came when last asked for; unless `ahead`, others are not either then

    @property
    def named(self) -> bool:
        """Whether tasks are known that have limits."""
        return bool(self._names)

    def look(self) -> None:
        """There may be a job that may start."""
        self._dry = False

    def open(self) -> bool:
        """Whether there is anything to ask for, were there a slot."""
        return not self._dry and (bool(self._names) or monotonic() >= self._rarely_at)

    def want(self, slots: int) -> Want | None:
        """What to ask for, with so many slots free."""
        if slots <= 0 or not self.open():
            return None
        tasks: tuple[str, ...] | None = self._names
        if monotonic() >= self._rarely_at:
            self._rarely_at = monotonic() + RARELY
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

    def learn(self, want: Want, brought: int) -> bool:
        """How many jobs it brought. True when there may be more."""
        self._dry = brought < want.limit
        self.flowing = brought > 0
        return not self._dry
