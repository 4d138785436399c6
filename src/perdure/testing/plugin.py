"""The pytest plugin: fixtures for tests of code that enqueues. It imports Perdure only when a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.app import Perdure

    from .clock import ManualClock


@pytest.fixture
def perdure_clock() -> ManualClock:
    """A clock that the test moves: hand it to `Perdure(clock=…)`, or use `perdure_memory`."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def perdure_memory(perdure_clock: ManualClock) -> Iterator[Callable[[Perdure], Perdure]]:
    """Gives an app an empty store in memory, and the test's clock, until the test ends: `app = perdure_memory(app)`."""
    from .swapping import swap

    with ExitStack() as stack:

        def in_memory(app: Perdure) -> Perdure:
            stack.enter_context(swap(app, "memory://", clock=perdure_clock))
            return app

        yield in_memory
