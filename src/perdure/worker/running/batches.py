"""Batches: claimed jobs of one task that one call of its handler runs together.

Each item has its own hold: its own lease, timeout, loss and outcome. Only the call is shared. A lost item is marked and the
others go on. When all items without an outcome are lost, the worker cancels the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...core.job import Loss
from ...core.record import Record
from ...handler import context_access
from ...handler.item import BatchContext, Item, results_of
from .attempt import Attempt
from .deadlines import AGAIN

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition


class Batch:
    """Some attempts, collected for one call."""

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
        self.context = BatchContext(items)
        return self.context

    @property
    def record(self) -> Record:
        """Of the first: what a log names."""
        return self.attempts[0].record

    @property
    def items(self) -> list[Item[Any]]:
        assert self.context is not None
        return context_access.items_of(self.context)

    def note_lost_item(self, reason: Loss) -> None:
        """An item was lost. When all others are lost or over, cancel the call."""
        if self.lost is None and all(attempt.ended or attempt.lost is not None for attempt in self.attempts):
            self.lost = reason
            if self.context is not None:
                context_access.lose(self.context, reason)
            self.stop()

    def stop(self) -> None:
        if self.slot is not None:
            self.slot.cancel()

    def stop_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the call when its longest timeout is over, and again until it ends. Items that have their outcome have no
        timeout any more, but the call has."""
        self._stop_after(self.longest, loop)

    def _stop_after(self, seconds: float | None, loop: asyncio.AbstractEventLoop) -> None:
        if seconds is not None:
            self.timer = loop.call_later(seconds, self._stop_again, loop)

    def _stop_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop()
        self._stop_after(AGAIN, loop)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

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
    """Collects claimed jobs of batch tasks. It forms a batch when it is full, or when its first job has waited long
    enough, and never more batches at once than the task's concurrency."""

    def __init__(self, sizes: Mapping[TaskDefinition, int], add_batch: Callable[[Batch], None]) -> None:
        self.sizes = sizes
        self._add_batch = add_batch
        self._loop = asyncio.get_running_loop()
        self._collected: dict[TaskDefinition, list[Attempt]] = {definition: [] for definition in sizes}
        self._timers: dict[TaskDefinition, asyncio.TimerHandle] = {}
        self._due: set[TaskDefinition] = set()
        self._active: dict[TaskDefinition, set[Batch]] = {
            definition: set() for definition in sizes
        }  # formed and not over

    @property
    def collecting(self) -> int:
        """Batches that wait for more items."""
        return sum(1 for collected in self._collected.values() if collected)

    def waiting(self, definition: TaskDefinition) -> int:
        """Jobs of this task that wait for their batch."""
        return len(self._collected[definition])

    def room(self, definition: TaskDefinition) -> int:
        """How many further batches of this task may be formed before one is over."""
        most = definition.concurrency
        return 1_000_000 if most is None else max(0, most - len(self._active[definition]))

    def add(self, attempts: list[Attempt]) -> list[Attempt]:
        """Collect the attempts of batch tasks. Returns the others."""
        rest = []
        touched: dict[TaskDefinition, None] = {}
        for attempt in attempts:
            definition = attempt.definition
            if definition is None or definition.batch is None:
                rest.append(attempt)
            else:
                self._collected[definition].append(attempt)
                touched[definition] = None
        for definition in touched:
            self._form_batches(definition)
        return rest

    def attempts(self) -> Iterator[Attempt]:
        """Attempts that wait for their batch."""
        for collected in self._collected.values():
            yield from collected

    def end(self, batch: Batch) -> None:
        self._active[batch.definition].discard(batch)
        self._form_batches(batch.definition)

    def take_back(self) -> list[Attempt]:
        """Everything that was collected and not formed."""
        taken = [attempt for collected in self._collected.values() for attempt in collected]
        for definition in self._collected:
            self._collected[definition] = []
        self.close()
        return taken

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _form_batches(self, definition: TaskDefinition) -> None:
        """Form what is full or has waited long enough."""
        size = self.sizes[definition]
        collected = self._collected[definition] = [each for each in self._collected[definition] if not each.ended]
        while collected and self.room(definition) and (len(collected) >= size or definition in self._due):
            batch = Batch(definition, collected[:size])
            collected = self._collected[definition] = collected[size:]
            self._stop_timer(definition)
            self._active[definition].add(batch)
            self._add_batch(batch)
        if collected and definition not in self._timers and definition not in self._due:
            assert definition.batch is not None
            self._timers[definition] = self._loop.call_later(definition.batch.wait, self._wait_is_over, definition)

    def _wait_is_over(self, definition: TaskDefinition) -> None:
        self._timers.pop(definition, None)
        self._due.add(definition)
        self._form_batches(definition)

    def _stop_timer(self, definition: TaskDefinition) -> None:
        self._due.discard(definition)
        if (timer := self._timers.pop(definition, None)) is not None:
            timer.cancel()
