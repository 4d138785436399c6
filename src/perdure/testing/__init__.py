"""Tools for tests of code that uses Perdure, and for tests of stores.

Names are imported at first use, so that `import perdure.testing` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .assertions import assert_enqueued, refute_enqueued
    from .clock import ManualClock
    from .drain_app import drain
    from .swap_store import swap

__all__ = ["ManualClock", "assert_enqueued", "drain", "refute_enqueued", "swap"]

_HOMES = {
    "ManualClock": ".clock",
    "assert_enqueued": ".assertions",
    "drain": ".drain_app",
    "refute_enqueued": ".assertions",
    "swap": ".swap_store",
}


if not TYPE_CHECKING:  # a type checker would otherwise accept every name

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
