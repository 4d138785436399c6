"""Drive a coroutine inside a `contextvars.Context` of its own, within the task that awaits it.

A task per job would cost several times as much; a plain await would leak the handler's context variables into the
next job of the slot. `current_task`, `asyncio.timeout`, TaskGroup and cancellation work as in any task.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import Context as Variables
from typing import Any


class Driven:
    """An awaitable that runs `coroutine` in `variables`."""

    __slots__ = ("_coroutine", "_variables")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], variables: Variables) -> None:
        self._coroutine = coroutine
        self._variables = variables

    def __await__(self) -> Generator[Any, Any, Any]:
        run = self._variables.run
        step: Any = self._coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = run(step, value)
            except StopIteration as end:
                return end.value
            try:
                value = yield waits_for
                step = self._coroutine.send
            except BaseException as error:
                value = error
                step = self._coroutine.throw
