"""A suite: the contenders on one store, its raw limits and its goals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .contender import Contender
from .results import Results


@dataclass(frozen=True)
class Goal:
    """One line of what Holdfast must reach. `value` is None when the run did not measure it."""

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
    remarks: Sequence[str] = ()

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
