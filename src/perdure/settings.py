"""The settings of an app, each checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from .core.clock import Clock, Duration, micros_of
from .core.validation import LARGEST_MAX_BYTES, MAX_BYTES
from .errors import InvalidCall

DEFAULT_URL: Final = "sqlite:///perdure.db"
URL_VARIABLE: Final = "PERDURE_URL"


Durability = Literal["full", "normal", "relaxed"]
OUTBOXES: Final = ("sqlite:", "sqlite+apsw:", "postgresql:", "postgres:")  # databases that can hold one


@dataclass(frozen=True)
class Thresholds:
    """From when on health is no longer good: jobs waiting, seconds of the oldest, dead letters, workers.

    >>> Thresholds(depth=1000).dead
    100
    """

    depth: int = 100
    age: Duration = 3600
    dead: int = 100
    workers: int = 1

    def __post_init__(self) -> None:
        micros_of(self.age, "Thresholds age")
        for name in ("depth", "dead", "workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidCall(f"Thresholds {name} must be a whole number of at least 0, it is {value!r}")


@dataclass(frozen=True)
class Settings:
    """The app's own options; those of its tasks are defaults of the registry."""

    url: str | None = None  # None: $PERDURE_URL, else an SQLite file in the working directory
    imports: tuple[str, ...] = ()
    durability: Durability = "normal"
    migrate: bool = True
    clock: Clock | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    max_bytes: int = MAX_BYTES
    outbox: str | None = None


def settings_of(
    url: str | None,
    imports: Sequence[str],
    durability: Durability,
    migrate: bool,
    outbox: str | None,
    clock: Clock | None,
    thresholds: Thresholds,
    max_bytes: int,
) -> Settings:
    """The settings, each checked."""
    if url is not None and not isinstance(url, str):
        raise InvalidCall(f"Perdure takes a URL such as 'sqlite:///jobs.db', not {type(url).__name__}")
    if (
        isinstance(imports, str)
        or not isinstance(imports, Iterable)
        or not all(isinstance(name, str) for name in imports)
    ):
        raise InvalidCall('imports= is a list of module names, e.g. imports=["shop.tasks"]')
    if durability not in ("full", "normal", "relaxed"):
        raise InvalidCall(f"durability={durability!r} is none of 'full', 'normal', 'relaxed'")
    if not isinstance(migrate, bool):
        raise InvalidCall(f"migrate= is True or False, not {migrate!r}")
    if outbox is not None and not (isinstance(outbox, str) and outbox.strip().lower().startswith(OUTBOXES)):
        raise InvalidCall(
            "outbox= is the URL of the database that your transactions are in: 'sqlite:///shop.db' or "
            "'postgresql://user@host/database'"
        )
    if not isinstance(thresholds, Thresholds):
        raise InvalidCall(f"thresholds= takes Thresholds(…), not {type(thresholds).__name__}")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 0 < max_bytes <= LARGEST_MAX_BYTES:
        raise InvalidCall(f"max_bytes={max_bytes!r} must be between 1 and {LARGEST_MAX_BYTES} bytes")
    return Settings(url, tuple(imports), durability, migrate, check_clock(clock), thresholds, max_bytes, outbox)


def check_clock(clock: Clock | None) -> Clock | None:
    if clock is not None and not callable(getattr(clock, "now", None)):
        raise InvalidCall(f"clock= needs a now() that gives an aware datetime; {type(clock).__name__} has none")
    return clock
