"""The edges between jobs in the memory store, and the list of parents whose edges must be resolved.

An open edge holds its child back. A closed edge stays until the child has ended, so that the parent's result is there when
the child runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable


class Edges:
    """Edges by parent and by child; `unresolved` are parents whose edges must be resolved, in the order in which they
    came."""

    def __init__(self) -> None:
        self.unresolved: dict[str, None] = {}
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._parents: defaultdict[str, set[str]] = defaultdict(set)
        self._closed: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, parent: str, child: str, *, unresolved: bool = True) -> None:
        self._children[parent].add(child)
        self._parents[child].add(parent)
        if unresolved:
            self.unresolved[parent] = None

    def close(self, parent: str, child: str) -> None:
        self._children[parent].discard(child)
        self._parents[child].discard(parent)
        self._closed[parent].add(child)

    def close_all(self, child: str) -> None:
        for parent in list(self._parents[child]):
            self.close(parent, child)

    def lead_from(self, parent: str, to: str, child: str) -> None:
        self.close(parent, child)
        self.add(to, child)

    def leads(self, parent: str | None, child: str) -> bool:
        """Whether this job waits for that one."""
        return parent in self._parents[child]

    def children(self, parent: str) -> list[str]:
        """Those that still wait for this job."""
        return sorted(self._children[parent])

    def parents(self, child: str) -> list[str]:
        """Those that this job still waits for."""
        return sorted(self._parents[child])

    def keep(self, parent: str, children: Iterable[str]) -> None:
        """Add closed edges."""
        self._closed[parent].update(children)

    def kept_for(self, parent: str, ended: Callable[[str], bool]) -> list[str]:
        """Those that waited for this job and have not ended."""
        waited = self._closed[parent] - self._children[parent]
        return sorted(child for child in waited if not ended(child))

    def needed(self, parent: str, ended: Callable[[str], bool]) -> bool:
        """Whether a job that has not ended waits, or waited, for this one."""
        return bool(self._children[parent]) or not all(ended(child) for child in self._closed[parent])

    def forget(self, jobs: Iterable[str]) -> None:
        """These jobs are gone."""
        for job in jobs:
            self.close_all(job)
            for edges in (self._children, self._parents, self._closed):
                edges.pop(job, None)
            self.unresolved.pop(job, None)
