"""The jobs that can be claimed, in lanes.

A lane holds the ready jobs of one queue, task, routing key and limits, suspects apart, as a heap of (-priority, rank, id).
A claim merges the heads of the lanes that it wants, so that other jobs cost it nothing. Lanes of one task and routing key
form a group, which keeps the heads of its lanes in a heap of its own: a claim for all queues reads the groups, however
many queues there are. A job that leaves its lane other than by a claim stays in the heap as an outdated entry, which is
dropped when it comes to the head; the group's entry for it is replaced then.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from perdure.core.job import ANY
from perdure.core.record import Record
from perdure.storage.contract import Want
from perdure.storage.rules.limits import ClaimOrder, Gate


class Group(NamedTuple):
    """The lanes of all queues that are alike otherwise."""

    task: str
    routing_key: str | None
    suspect: bool
    limited: bool

    def wanted(self, want: Want, *, alone: bool) -> bool:
        return (
            self.suspect is alone
            and self.limited is want.limited
            and (want.tasks is None or self.task in want.tasks)
            and (want.routing is ANY or self.routing_key == want.routing)
        )


class Lane(NamedTuple):
    queue: str
    task: str
    routing_key: str | None
    suspect: bool
    limits: str | None

    @property
    def group(self) -> Group:
        return Group(self.task, self.routing_key, self.suspect, self.limits is not None)


Heads = list[
    tuple[ClaimOrder, Lane]
]  # a heap; an entry whose lane has another head by now is replaced when it comes first


class Lanes:
    """Ready jobs in the order of a claim."""

    def __init__(self) -> None:
        self._heaps: dict[Lane, list[ClaimOrder]] = {}
        self._places: dict[str, tuple[Lane, ClaimOrder]] = {}
        self._of_queue: dict[str, set[Lane]] = {}
        self._limited: dict[Lane, None] = {}
        self._heads: dict[Group, list[tuple[ClaimOrder, Lane]]] = {}

    def put(self, record: Record) -> None:
        lane = Lane(record.queue, record.task, record.routing_key, record.suspect, record.limits)
        place = (-record.priority, record.rank, record.id)
        self._places[record.id] = (lane, place)
        self._push(lane, place)

    def drop(self, id: str) -> None:
        self._places.pop(id, None)

    def gates(self, want: Want, paused: Callable[[str], bool], fits: Callable[[str], bool]) -> list[Gate]:
        """The best jobs that fit of each wanted gate, as many as are wanted. All stay where they are."""
        by_limits: dict[str, list[ClaimOrder]] = {}
        for lane in list(self._limited):
            in_queue = (want.queues is None or lane.queue in want.queues) and not paused(lane.queue)
            if lane.limits is not None and in_queue and lane.group.wanted(want, alone=want.alone) and self._head(lane):
                live = [place for place in self._heaps[lane] if self._places.get(place[2]) == (lane, place)]
                by_limits.setdefault(lane.limits, []).extend(place for place in set(live) if fits(place[2]))
        return [Gate(limits, nsmallest(want.limit, places)) for limits, places in by_limits.items() if places]

    def take(
        self, want: Want, limit: int, paused: Callable[[str], bool], fits: Callable[[str], bool], *, alone: bool
    ) -> list[str]:
        """Take the best `limit` jobs that fit out of the wanted lanes; the others stay where they are."""
        if want.queues is None:
            sources = [heads for group, heads in self._heads.items() if group.wanted(want, alone=alone)]
        else:
            sources = [self._heads_in(want, alone=alone)]
        taken: list[str] = []
        unfit: list[tuple[Lane, ClaimOrder]] = []
        passed_by: list[tuple[Heads, tuple[ClaimOrder, Lane]]] = []
        while len(taken) < limit and (best := self._best(sources)) is not None:
            place, lane = entry = heappop(best)
            while best and best[0] == entry:
                heappop(best)
            if paused(lane.queue):
                passed_by.append((best, entry))
                continue
            heappop(self._heaps[lane])
            if fits(place[2]):
                taken.append(place[2])
                self.drop(place[2])
            else:
                unfit.append((lane, place))
            if head := self._head(lane):
                heappush(best, (head, lane))
        for heads, entry in passed_by:
            heappush(heads, entry)
        for lane, place in unfit:
            self._push(lane, place)
        return taken

    def _heads_in(self, want: Want, *, alone: bool) -> Heads:
        lanes = [lane for queue in dict.fromkeys(want.queues or ()) for lane in self._of_queue.get(queue, ())]
        heads = [(head, lane) for lane in lanes if lane.group.wanted(want, alone=alone) and (head := self._head(lane))]
        heapify(heads)
        return heads

    def _best(self, sources: list[Heads]) -> Heads | None:
        """The source whose first entry is the best job of all."""
        for heads in sources:
            while heads:
                place, lane = heads[0]
                head = self._head(lane)
                if head == place:
                    break
                heappop(heads)
                if head is not None:
                    heappush(heads, (head, lane))
        return min((heads for heads in sources if heads), key=lambda heads: heads[0], default=None)

    def _push(self, lane: Lane, place: ClaimOrder) -> None:
        heap = self._heaps.setdefault(lane, [])
        heappush(heap, place)
        self._of_queue.setdefault(lane.queue, set()).add(lane)
        if lane.limits is not None:
            self._limited[lane] = None
        if heap[0] == place:
            heappush(self._heads.setdefault(lane.group, []), (place, lane))

    def _head(self, lane: Lane) -> ClaimOrder | None:
        heap = self._heaps.get(lane, [])
        while heap:
            if self._places.get(heap[0][2]) == (lane, heap[0]):
                return heap[0]
            heappop(heap)
        self._forget(lane)
        return None

    def _forget(self, lane: Lane) -> None:
        """A lane without jobs."""
        if self._heaps.pop(lane, None) is not None:
            self._limited.pop(lane, None)
            self._of_queue[lane.queue].discard(lane)
            if not self._of_queue[lane.queue]:
                del self._of_queue[lane.queue]
