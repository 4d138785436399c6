"""Waiting for something that another task, thread or process does: for the event, never for a time that should be enough.

The limits are for a test that hangs; they say nothing about how long anything takes. A loaded machine may need many times
what an idle one needs.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT = 60.0  # seconds
TOO_LATE = "it did not happen in time"


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    within: float = LIMIT,
    otherwise: Callable[[], object] | str = TOO_LATE,
) -> T:
    """The first true value of a function, which may be `async def`."""
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        assert time.monotonic() < deadline, _text(otherwise)
        await asyncio.sleep(0.01)


async def stays(condition: Callable[[], object], seconds: float) -> None:
    """Fails when a condition, which may be `async def`, does not hold all the time. For what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = condition()
        assert await answer if inspect.isawaitable(answer) else answer
        await asyncio.sleep(0.01)


def wait_until(
    condition: Callable[[], T], within: float = LIMIT, otherwise: Callable[[], object] | str = TOO_LATE
) -> T:
    """The same for code without an event loop."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, _text(otherwise)
        time.sleep(0.005)
    return value


def _text(otherwise: Callable[[], object] | str) -> str:
    return otherwise if isinstance(otherwise, str) else str(otherwise())
