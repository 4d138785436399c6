"""The jobs that can be claimed, in lanes.

A lane holds the ready jobs of one queue, task, routing key and limits, suspects apart, as a heap of (-priority, rank, id).
A claim merges the heads of the lanes it wants, so that jobs nobody asked for cost it nothing. A job that leaves
its lane otherwise than by a claim stays in the heap as a dead entry, which is thrown away when it comes to the head.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from perdure.job import ANY, Record
from perdure.storage.contract import Want
from perdure.storage.limiting import Gate, Place


class Lane(NamedTuple):
    queue: str
    task: str
    routing_key: str | None
    suspect: bool
    limits: str | None

    def wanted(self, want: Want, *, alone: bool) -> bool:
        return (
            self.suspect is alone
            and (self.limits is not None) is want.limited
            and (want.queues is None or self.queue in want.queues)
            and (want.tasks is None or self.task in want.tasks)
            and (want.routing is ANY or self.routing_key == want.routing)
        )


class Lanes:
    """Ready jobs in the order of a claim."""

    def __init__(self) -> None:
        self._heaps: dict[Lane, list[Place]] = {}
        self._places: dict[str, tuple[Lane, Place]] = {}

    def put(self, record: Record) -> None:
        lane = Lane(record.queue, record.task, record.routing_key, record.suspect, record.limits)
        place = (-record.priority, record.rank, record.id)
        self._places[record.id] = (lane, place)
        heappush(self._heaps.setdefault(lane, []), place)

    def drop(self, id: str) -> None:
        self._places.pop(id, None)

    def gates(self, wanted: Callable[[Lane], bool], fits: Callable[[str], bool], limit: int) -> list[Gate]:
        """The best `limit` jobs that fit of each gate among the wanted lanes. All stay where they are."""
        by_limits: dict[str, list[Place]] = {}
        for lane in list(self._heaps):
            if lane.limits is not None and wanted(lane) and self._head(lane):
                live = [place for place in self._heaps[lane] if self._places.get(place[2]) == (lane, place)]
                by_limits.setdefault(lane.limits, []).extend(place for place in set(live) if fits(place[2]))
        return [Gate(limits, nsmallest(limit, places)) for limits, places in by_limits.items() if places]

    def take(self, wanted: Callable[[Lane], bool], fits: Callable[[str], bool], limit: int) -> list[str]:
        """Take the best `limit` jobs that fit out of the wanted lanes; the others stay where they are."""
        heads = [(head, lane) for lane in list(self._heaps) if wanted(lane) and (head := self._head(lane))]
        heapify(heads)
        taken: list[str] = []
        unfit: list[tuple[Lane, Place]] = []
        while heads and len(taken) < limit:
            place, lane = heappop(heads)
            heappop(self._heaps[lane])
            if fits(place[2]):
                taken.append(place[2])
                self.drop(place[2])
            else:
                unfit.append((lane, place))
            if head := self._head(lane):
                heappush(heads, (head, lane))
        for lane, place in unfit:
            heappush(self._heaps.setdefault(lane, []), place)
        return taken

    def _head(self, lane: Lane) -> Place | None:
        heap = self._heaps[lane]
        while heap:
            if self._places.get(heap[0][2]) == (lane, heap[0]):
                return heap[0]
            heappop(heap)
        del self._heaps[lane]
        return None
