"""The pytest plugin: fixtures for tests of code that enqueues. It imports Holdfast only when a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast

    from .clock import ManualClock


@pytest.fixture
def holdfast_clock() -> ManualClock:
    """A clock that the test moves: hand it to `Holdfast(clock=…)`, or use `holdfast_memory`."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def holdfast_memory(holdfast_clock: ManualClock) -> Iterator[Callable[[Holdfast], Holdfast]]:
    """Gives an app an empty store in memory, and the test's clock, until the test ends: `app = holdfast_memory(app)`."""
    from .swapping import swap

    with ExitStack() as stack:

        def in_memory(app: Holdfast) -> Holdfast:
            stack.enter_context(swap(app, "memory://", clock=holdfast_clock))
            return app

        yield in_memory
