"""What to ask the store for, where tasks are not all alike: some run only so many at once, some run in batches.

A worker never asks for what it could not run. Tasks at their limit are left out. Those near it are asked for in steps:
with room for two jobs of `a` and five of `b`, and ten slots, the wants are two of any task, three of any but `a`, five of
those without a limit. So the best go first, and no more of `a` or `b` can come than there is room for.

Batch tasks have wants of their own: a slot takes a whole batch. Slots are shared out between the batch tasks and all the
others, in turns where there are fewer slots than takers; who had nothing when last asked is not asked until something
has been signalled, or the poll is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.job import Routing
from ...core.record import Record
from ...storage.contract import Claim, Want
from ..leases.held_jobs import HeldJobs
from ..running.batches import BatchCollector

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

STEPS = 4  # wants of single jobs in one claim at most


class PerTaskDemand:
    """The wants of a worker that has limited or batch tasks."""

    def __init__(
        self,
        definitions: Mapping[str, TaskDefinition],
        queues: tuple[str, ...] | None,
        tasks: tuple[str, ...] | None,
        routing: Routing,
        chunk: int,
        held: HeldJobs,
    ) -> None:
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self._chunk = chunk
        self._held = held
        self._definitions = definitions
        self._names: dict[TaskDefinition, list[str]] = {}
        for name, definition in definitions.items():
            if tasks is None or name in tasks:
                self._names.setdefault(definition, []).append(name)
        self.limited = [each for each in self._names if each.concurrency is not None and each.batch is None]
        self.batches = [each for each in self._names if each.batch is not None]
        singles = [name for each, names in self._names.items() if each.batch is None for name in names]
        self._singles = None if tasks is None else tuple(sorted(singles))
        self._takers: list[TaskDefinition | None] = [*self.batches, *([None] if singles or tasks is None else [])]
        self._dry: set[TaskDefinition | None] = set()  # who had nothing; None stands for all single jobs
        self._turn = 0
        self.forming: BatchCollector

    @property
    def plain(self) -> bool:
        """All tasks are alike: no menu is needed."""
        return not self.limited and not self.batches

    def look(self) -> None:
        """There may be something for everyone."""
        self._dry.clear()

    def ended(self, definition: TaskDefinition | None) -> bool:
        """An attempt of this task is over. True when there is room now for one that may have been left out."""
        if definition is None or definition.concurrency is None:
            return False
        self._dry.discard(definition if definition.batch is not None else None)
        return True

    def wants(self, demand: int, free: int, under_way: Iterable[Claim], *, everyone: bool) -> tuple[Want, ...]:
        """What to ask for. `demand`: jobs for the slots and ahead of them; `free`: slots without anything to do.
        `everyone`: with what the others leave, for those too that had nothing when last asked."""
        asked = self._asked(under_way)
        takers = self._in_turn([each for each in self._takers if each not in self._dry])
        first = len(takers)
        if everyone:
            takers += self._in_turn([each for each in self._takers if each in self._dry])
        wants: list[Want] = []
        left = self._chunk
        for number, taker in enumerate(takers):
            sharing = (first if number < first else len(takers)) - number
            share = -(-max(free, 0) // sharing)  # of the slots that are left, rounded up
            if taker is None:
                steps = self._steps(min(left, demand if len(takers) == 1 else min(share, demand)), asked)
                used = sum(want.limit for want in steps)
                left -= used
                wants += steps
            else:
                limit = min(left, self._batch_room(taker, share, asked))
                used = self._slots(taker, limit)
                if limit > 0:
                    wants.append(self._want(limit, tuple(self._names[taker])))
                    left -= limit
            free -= used
            demand -= used
        return tuple(wants)

    def slots(self, claim: Claim) -> int:
        """How many slots a claim's jobs would fill."""
        return sum(self._slots(self._batch_of(want), want.limit) for want in claim.wants)

    def has_room(self, free: int) -> bool:
        """Whether there is anything to ask for, were there jobs of every task."""
        asked = self._asked(())
        return any(
            bool(self._steps(free, asked)) if taker is None else self._batch_room(taker, free, asked) > 0
            for taker in self._takers
        )

    def taken_turn(self) -> None:
        """The wants were sent."""
        self._turn += 1

    def learn(self, claim: Claim, records: Sequence[Record]) -> bool:
        """Who had less than was asked for. True when somebody may have more."""
        if self._tasks is None and len(records) >= claim.wants[0].limit:
            return True  # a want of all tasks may have brought jobs of batch tasks as well
        brought: Counter[TaskDefinition | None] = Counter()
        for record in records:
            definition = self._definitions.get(record.task)
            brought[definition if definition is not None and definition.batch is not None else None] += 1
        asked: dict[TaskDefinition | None, int] = {}
        for want in claim.wants:
            asked.setdefault(self._batch_of(want), want.limit)  # of the steps, the first asks for every task
        self._dry.update(taker for taker, limit in asked.items() if brought[taker] < limit)
        return any(taker not in self._dry for taker in self._takers)

    def _in_turn(self, takers: list[TaskDefinition | None]) -> list[TaskDefinition | None]:
        first = self._turn % len(takers) if takers else 0
        return [*takers[first:], *takers[:first]]

    # -- single jobs ---------------------------------------------------------------------------------
    def _steps(self, limit: int, asked: Counter[TaskDefinition]) -> list[Want]:
        """Wants for this many jobs, none of which brings more of a limited task than there is room for."""
        if limit <= 0:
            return []
        counts = self._held.counts(self.limited)
        rooms = {each: max(0, (each.concurrency or 0) - counts[each] - asked[each]) for each in self.limited}
        if min(rooms.values(), default=limit) >= limit:
            return [self._want(limit, self._singles)]
        wants: list[Want] = []
        given = 0
        for bound in [*sorted({min(room, limit) for room in rooms.values() if room})[: STEPS - 1], limit]:
            names = self._unlimited_but(each for each, room in rooms.items() if room < bound)
            if bound > given and names:
                wants.append(self._want(bound - given, names))
                given = bound
        return wants

    def _unlimited_but(self, left_out: Iterable[TaskDefinition]) -> tuple[str, ...]:
        # with tasks=None this leaves out jobs of unknown tasks for as long as a task is at its limit
        out = {name for each in left_out for name in self._names[each]}
        known = self._singles
        if known is None:
            known = tuple(sorted(name for each, names in self._names.items() if each.batch is None for name in names))
        return tuple(name for name in known if name not in out)

    # -- batches -------------------------------------------------------------------------------------
    def _batch_room(self, definition: TaskDefinition, slots: int, asked: Counter[TaskDefinition]) -> int:
        """How many more jobs fit into the batch that is being gathered and into this many slots."""
        size = self.forming.sizes[definition]
        waiting = self.forming.waiting(definition) + asked[definition]
        begun = -(-waiting // size)  # batches that have their slot already
        most = min(begun + max(slots, 0), self.forming.room(definition))
        return max(0, most * size - waiting)

    def _slots(self, definition: TaskDefinition | None, jobs: int) -> int:
        if definition is None:
            return jobs
        size = self.forming.sizes[definition]
        waiting = self.forming.waiting(definition)
        return -(-(waiting + jobs) // size) - -(-waiting // size)

    def _batch_of(self, want: Want) -> TaskDefinition | None:
        definition = self._definitions.get(want.tasks[0]) if want.tasks else None
        return definition if definition is not None and definition.batch is not None else None

    def _asked(self, under_way: Iterable[Claim]) -> Counter[TaskDefinition]:
        """How many jobs of each limited or batch task the claims under way may bring."""
        asked: Counter[TaskDefinition] = Counter()
        for claim in under_way:
            for want in claim.wants:
                for definition in (*self.limited, *self.batches):
                    if want.tasks is None or self._names[definition][0] in want.tasks:
                        asked[definition] += want.limit
        return asked

    def _want(self, limit: int, tasks: tuple[str, ...] | None) -> Want:
        return Want(limit, self._queues, tasks, self._routing)
