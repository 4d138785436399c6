"""What a supervisor keeps running, and how that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Team:
    """The runners of one supervisor."""

    command: Sequence[str]  # starts a runner; the supervisor appends the descriptors that it inherits
    options: dict[str, Any]  # sent to every runner
    name: str
    open_app: Callable[[str], Any]  # an app on the store of this URL, for the supervisor's own use
    processes: int = 1
    spares: int = 1
    grace: float = 30.0
    max_jobs: int | None = None
    max_memory: int | None = None  # bytes
    probe: dict[str, Any] | None = None  # arguments of a Probe: port, host, file


@dataclass(frozen=True)
class Ended:
    """How a supervisor ended. `alone`: why it started nothing, if the store lives in one process."""

    code: int = 0
    alone: str | None = None
