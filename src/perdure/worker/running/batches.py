"""Batches: claimed jobs of one task that one call of its handler runs together.

Each item is a hold of its own: its lease, its timeout, its loss and its outcome. What the worker keeps together is only the
call. A lost item is marked and the others go on; when all that have no outcome yet are lost, the call is told to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.job import Loss
from ...core.record import Record
from ...handler.item import BatchContext, Item, results_of
from .attempt import Attempt

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition


class Batch:
    """Some attempts, gathered for one call."""

    __slots__ = ("attempts", "context", "definition", "lost", "slot", "timer")

    def __init__(self, definition: TaskDefinition, attempts: list[Attempt]) -> None:
        self.definition = definition
        self.attempts = attempts
        self.context: BatchContext | None = None
        self.lost: Loss | None = None
        self.slot: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, items: list[Item[Any]]) -> BatchContext:
        """The handler is about to be called with these."""
        for attempt in self.attempts:
            if attempt.parents and attempt.context is not None:
                attempt.context._parents = attempt.parents
        self.context = BatchContext(items)
        return self.context

    @property
    def record(self) -> Record:
        """Of the first: what a log names."""
        return self.attempts[0].record

    @property
    def items(self) -> list[Item[Any]]:
        assert self.context is not None
        return list(self.context._items)

    def lost_one(self, reason: Loss) -> None:
        """An item was lost. When no other is left to work for, the call is told to stop."""
        if self.lost is None and all(attempt.ended or attempt.lost is not None for attempt in self.attempts):
            self.lost = reason
            if self.context is not None:
                self.context.lost._set(reason)
            self.stop()

    def stop(self) -> None:
        if self.slot is not None:
            self.slot.cancel()

    @property
    def longest(self) -> float | None:
        """Seconds after which no item has time left."""
        times = [attempt.record.timeout for attempt in self.attempts]
        return None if None in times else max(time or 0 for time in times) / 1_000_000

    def ends(self, value: object, error: BaseException | None) -> list[tuple[Attempt, object, BaseException | None]]:
        """What the end of the call means for each item that has no outcome yet."""
        results: Any = [None] * len(self.attempts)
        if error is None:
            try:
                results = results_of(self.definition.name, self.attempts, value)
            except KeyboardInterrupt:
                raise
            except BaseException as unfit:  # the list may be of the user's making
                error = unfit
        return [
            (attempt, result, error)
            for attempt, result in zip(self.attempts, results, strict=True)
            if not attempt.ended
        ]


class BatchCollector:
    """Gathers claimed jobs of batch tasks. A batch is formed when it is full, or when its first job has waited long enough,
    and never more at once than the task's concurrency."""

    def __init__(self, sizes: Mapping[TaskDefinition, int], form: Callable[[Batch], None]) -> None:
        self.sizes = sizes
        self._form = form
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[TaskDefinition, list[Attempt]] = {definition: [] for definition in sizes}
        self._timers: dict[TaskDefinition, asyncio.TimerHandle] = {}
        self._due: set[TaskDefinition] = set()
        self._formed: dict[TaskDefinition, set[Batch]] = {definition: set() for definition in sizes}  # and not over

    @property
    def gathering(self) -> int:
        """Batches that are being gathered."""
        return sum(1 for gathered in self._gathered.values() if gathered)

    def waiting(self, definition: TaskDefinition) -> int:
        """Jobs of this task that wait for company."""
        return len(self._gathered[definition])

    def room(self, definition: TaskDefinition) -> int:
        """How many further batches of this task may be formed before one is over."""
        most = definition.concurrency
        return 1_000_000 if most is None else max(0, most - len(self._formed[definition]))

    def sorted_out(self, attempts: list[Attempt]) -> list[Attempt]:
        """Take what belongs into batches; gives the rest."""
        rest = []
        touched: dict[TaskDefinition, None] = {}
        for attempt in attempts:
            definition = attempt.definition
            if definition is None or definition.batch is None:
                rest.append(attempt)
            else:
                self._gathered[definition].append(attempt)
                touched[definition] = None
        for definition in touched:
            self._look(definition)
        return rest

    def at_hand(self) -> Iterator[Attempt]:
        """Attempts that wait for company."""
        for gathered in self._gathered.values():
            yield from gathered

    def over(self, batch: Batch) -> None:
        self._formed[batch.definition].discard(batch)
        self._look(batch.definition)

    def take_back(self) -> list[Attempt]:
        """Everything that was gathered and not formed."""
        taken = [attempt for gathered in self._gathered.values() for attempt in gathered]
        for definition in self._gathered:
            self._gathered[definition] = []
        self.close()
        return taken

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look(self, definition: TaskDefinition) -> None:
        """Form what is full or has waited long enough."""
        size = self.sizes[definition]
        gathered = self._gathered[definition] = [each for each in self._gathered[definition] if not each.ended]
        while gathered and self.room(definition) and (len(gathered) >= size or definition in self._due):
            batch = Batch(definition, gathered[:size])
            gathered = self._gathered[definition] = gathered[size:]
            self._stop_timer(definition)
            self._formed[definition].add(batch)
            self._form(batch)
        if gathered and definition not in self._timers and definition not in self._due:
            assert definition.batch is not None
            self._timers[definition] = self._loop.call_later(definition.batch.wait, self._waited, definition)

    def _waited(self, definition: TaskDefinition) -> None:
        self._timers.pop(definition, None)
        self._due.add(definition)
        self._look(definition)

    def _stop_timer(self, definition: TaskDefinition) -> None:
        self._due.discard(definition)
        if (timer := self._timers.pop(definition, None)) is not None:
            timer.cancel()
