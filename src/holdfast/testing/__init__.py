"""Tools for tests of code that uses Holdfast, and for tests of stores.

Names are imported when they are first asked for, so that `import holdfast.testing` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import ManualClock

__all__ = ["ManualClock"]

_HOMES = {
    "ManualClock": ".clock",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
