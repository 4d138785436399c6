"""A suite: the contenders on one store, its raw limits and its goals."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contender import Contender
from .results import FIGURES, Figure, Results

FreshPlace = Callable[[], AbstractContextManager[Path]]


@contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@dataclass(frozen=True)
class Goal:
    """One line of what Perdure must reach. `value` is None when the run did not measure it."""

    text: str
    value: float | None
    met: bool
    shown: str


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    contenders: Sequence[type[Contender]]
    # Labels of raw limits that can be measured here; each is a small script without handlers.
    raw_labels: Callable[[], Sequence[str]]
    raw_rate: Callable[[Path, str, int], dict[str, float]]
    goals: Callable[[Results], Sequence[Goal]]
    # Lines about the store that the machine line needs: versions, journal modes.
    machine: Callable[[], Sequence[str]]
    # What a reader must know; the fields of the plan can be named in braces.
    remarks: Sequence[str] = ()
    # Whatever lives as long as the run, a server say; it gives fresh places: folders with a database in or behind them.
    opened: Callable[[], AbstractContextManager[FreshPlace]] = lambda: nullcontext(fresh_folder)
    # Bytes that the store has written ahead so far; None where nobody counts them.
    written: Callable[[Path], float] | None = None
    figures: Sequence[Figure] = FIGURES
    # Measures beside those that every suite has, by name: functions of a spawner, a contender and a plan.
    measures: Callable[[type[Contender]], Mapping[str, Any]] = lambda contender: {}

    def contender(self, key: str) -> type[Contender]:
        return next(contender for contender in self.contenders if contender.key == key)

    def available(self, only: Sequence[str] = ()) -> list[type[Contender]]:
        """The importable contenders; `only` names some, by key."""
        unknown = set(only) - {contender.key for contender in self.contenders}
        if unknown:
            raise SystemExit(f"no contender {', '.join(sorted(unknown))}; there are: {', '.join(self.keys())}")
        return [c for c in self.contenders if (not only or c.key in only) and c.version() is not None]

    def keys(self) -> list[str]:
        return [contender.key for contender in self.contenders]
