"""The options of a worker, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..core.job import Routing
from ..errors import InvalidCall
from ..tasks.options import check_size

if TYPE_CHECKING:
    from ..tasks.definition import TaskDefinition


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker was asked to do. Durations are seconds."""

    id: str
    queues: tuple[str, ...] | None
    asked_tasks: tuple[str, ...] | None
    routing: Routing
    concurrency: int
    batch_size: Mapping[str, int]
    poll: float
    grace: float
    unknown: Literal["leave", "fail"]

    def check_tasks(self, known: Mapping[str, TaskDefinition]) -> None:
        """Raise if the options name a task that is not registered."""
        for name in self.asked_tasks or ():
            if name not in known:
                raise InvalidCall(f"no task named {name!r} is registered; known: {', '.join(sorted(known))}")
        for name in self.batch_size:
            if name not in known or known[name].batch is None:
                raise InvalidCall(f"batch_size names {name!r}, which is no batch task that is registered here")

    def wanted_tasks(self, known: Mapping[str, TaskDefinition]) -> tuple[str, ...] | None:
        """The tasks to claim, with their aliases; None for any task."""
        if self.asked_tasks is not None:
            chosen = {known[name].name for name in self.asked_tasks}
            return tuple(sorted(name for name, definition in known.items() if definition.name in chosen))
        return None if self.unknown == "fail" else tuple(sorted(known))

    def batch_sizes(self, known: Mapping[str, TaskDefinition]) -> dict[TaskDefinition, int]:
        """How many jobs one call of each batch task gets."""
        sizes = {each: each.batch.size for each in known.values() if each.batch is not None}
        return sizes | {known[name]: size for name, size in self.batch_size.items()}


def checked_sizes(sizes: Mapping[str, int] | None) -> dict[str, int]:
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise InvalidCall(f"batch_size is a mapping of tasks to numbers of jobs, not {type(sizes).__name__}")
    return {name: check_size(size, f"batch_size[{name!r}]") for name, size in sizes.items()}
