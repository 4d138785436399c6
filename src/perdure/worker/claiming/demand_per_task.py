"""Decides what to claim where tasks differ: some have a concurrency, some run in batches.

A worker never claims what it could not run. It leaves out tasks that are at their concurrency, and asks for tasks near it
in steps. With room for two jobs of `a` and five of `b`, and ten slots, the wants are two of any task, three of any but
`a`, five of those without a concurrency. So the best jobs go first, and no more of `a` or `b` can come than there is room
for.

Batch tasks have wants of their own: a slot takes a whole batch. The slots are shared between the batch tasks and all
others, in turns where there are fewer slots than takers. A task that had no job at the last claim is left out until a
signal arrives or the poll is due.
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
        batches: BatchCollector,
    ) -> None:
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self._chunk = chunk
        self._held = held
        self._batches = batches
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
        self._ran_dry: set[TaskDefinition | None] = set()  # tasks that had no job; None stands for all single jobs
        self._turn = 0

    @property
    def is_needed(self) -> bool:
        """Whether tasks differ in what may be claimed: some have a concurrency or run in batches."""
        return bool(self.limited or self.batches)

    def assume_more(self) -> None:
        """The store may have jobs of every task."""
        self._ran_dry.clear()

    def note_freed(self, definition: TaskDefinition) -> None:
        """An attempt of a task with a concurrency ended: there is room for one that may have been left out."""
        self._ran_dry.discard(definition if definition.batch is not None else None)

    def wants(self, demand: int, free: int, under_way: Iterable[Claim], *, everyone: bool) -> tuple[Want, ...]:
        """What to claim. `demand`: jobs for the slots and ahead of them; `free`: slots without a job. `everyone`: give
        what is left to tasks that had no job at the last claim."""
        asked = self._count_asked(under_way)
        takers = self._in_turn([each for each in self._takers if each not in self._ran_dry])
        first = len(takers)
        if everyone:
            takers += self._in_turn([each for each in self._takers if each in self._ran_dry])
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
        """Whether there would be room for a job if the store had jobs of every task."""
        asked = self._count_asked(())
        return any(
            bool(self._steps(free, asked)) if taker is None else self._batch_room(taker, free, asked) > 0
            for taker in self._takers
        )

    def next_turn(self) -> None:
        """Let another task go first in the next claim."""
        self._turn += 1

    def learn(self, claim: Claim, records: Sequence[Record]) -> bool:
        """Learn which tasks had fewer jobs than asked for. True when some task may have more."""
        if self._tasks is None and len(records) >= claim.wants[0].limit:
            return True  # a want of all tasks may have returned jobs of batch tasks as well
        returned: Counter[TaskDefinition | None] = Counter()
        for record in records:
            definition = self._definitions.get(record.task)
            returned[definition if definition is not None and definition.batch is not None else None] += 1
        asked: dict[TaskDefinition | None, int] = {}
        for want in claim.wants:
            asked.setdefault(self._batch_of(want), want.limit)  # of the steps, the first asks for every task
        self._ran_dry.update(taker for taker, limit in asked.items() if returned[taker] < limit)
        return any(taker not in self._ran_dry for taker in self._takers)

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
        """How many more jobs fit into the batch that is being collected and into this many slots."""
        size = self._batches.sizes[definition]
        waiting = self._batches.waiting(definition) + asked[definition]
        begun = -(-waiting // size)  # batches that have their slot already
        most = min(begun + max(slots, 0), self._batches.room(definition))
        return max(0, most * size - waiting)

    def _slots(self, definition: TaskDefinition | None, jobs: int) -> int:
        if definition is None:
            return jobs
        size = self._batches.sizes[definition]
        waiting = self._batches.waiting(definition)
        return -(-(waiting + jobs) // size) - -(-waiting // size)

    def _batch_of(self, want: Want) -> TaskDefinition | None:
        definition = self._definitions.get(want.tasks[0]) if want.tasks else None
        return definition if definition is not None and definition.batch is not None else None

    def _count_asked(self, under_way: Iterable[Claim]) -> Counter[TaskDefinition]:
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
