"""Drives a coroutine inside its own `contextvars.Context`, within the task that awaits it.

A task per job would cost several times as much; a plain await would leak the handler's context variables into the
next job of the slot. `current_task`, `asyncio.timeout`, TaskGroup and cancellation work as in any task.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import Context as Variables
from typing import Any


class ContextCoroutine:
    """An awaitable that runs `coroutine` in `variables` to its end. The coroutine has started and waits for `waits_for`."""

    __slots__ = ("_coroutine", "_variables", "_waits_for", "closed")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], variables: Variables, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._variables = variables
        self._waits_for = waits_for
        self.closed = False  # the awaiting task was thrown away: the coroutine has not ended by itself

    def __await__(self) -> Generator[Any, Any, Any]:
        run = self._variables.run
        waits_for = self._waits_for
        step: Any
        while True:
            try:
                value = yield waits_for
                step = self._coroutine.send
            except BaseException as error:
                self.closed = isinstance(error, GeneratorExit)
                value = error
                step = self._coroutine.throw
            try:
                waits_for = run(step, value)
            except StopIteration as end:
                return end.value
