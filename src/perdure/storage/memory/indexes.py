"""The rows of the memory store by id, and the indexes through which they are found.

A row is taken out of all indexes before it changes and put back afterwards, so that no change can forget one. Heaps keep
outdated entries until these come to the head.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush

from perdure.core.job import FINAL, WAITING, State
from perdure.core.record import ROW_VERSION, Record
from perdure.storage.rules.records import is_expired

from .lanes import Lanes

Group = tuple[str, bool]  # task, dead?


class IndexedRows:
    """Jobs with their indexes. `woken` and `changed` collect what listeners must be notified of."""

    def __init__(self) -> None:
        self.by_id: dict[str, Record] = {}
        self.depth: Counter[str] = Counter()
        self.woken: set[str] = set()
        self.changed = False
        self._lanes = Lanes()
        self._schedule: list[tuple[int, str]] = []
        self._held: set[str] = set()
        self._expiring: set[str] = set()
        self._prunable: list[tuple[int, str]] = []
        self._ended: defaultdict[Group, set[str]] = defaultdict(set)
        self._counted: set[Group] = set()

    def _take_out(self, record: Record) -> None:
        """Take a row out of its indexes before it changes."""
        if record.state in WAITING:
            self.depth[record.queue] -= 1
            self._expiring.discard(record.id)
            self._lanes.drop(record.id)
        self._held.discard(record.id)
        self._ended[_group(record)].discard(record.id)

    def _put_back(self, record: Record) -> None:
        """Put a row back into its indexes after it has changed."""
        if record.state in WAITING:
            self.depth[record.queue] += 1
            if record.expires_at is not None:
                self._expiring.add(record.id)
        if record.state is State.SCHEDULED:
            heappush(self._schedule, (record.run_at, record.id))
            self.woken.add(record.queue)
        if record.state is State.READY:
            self.woken.add(record.queue)
            if record.min_version <= ROW_VERSION:
                self._lanes.put(record)
        if record.stamp is not None:
            self._held.add(record.id)
        if record.prune_at is not None:
            heappush(self._prunable, (record.prune_at, record.id))
        if record.state in FINAL and not record.hidden:
            self._ended[_group(record)].add(record.id)
            if record.keep_last is not None:
                self._counted.add(_group(record))

    def held(self) -> list[Record]:
        return [self.by_id[id] for id in self._held]

    def next_due(self) -> int | None:
        while self._schedule:
            run_at, id = self._schedule[0]
            record = self.by_id.get(id)
            if record is not None and record.state is State.SCHEDULED and record.run_at == run_at:
                return run_at
            heappop(self._schedule)
        return None

    def expired(self, now: int) -> list[Record]:
        found = [record for id in self._expiring if is_expired(record := self.by_id[id], now)]
        return sorted(found, key=lambda record: (record.expires_at or 0, record.id))

    def _past_retention(self, now: int) -> list[str]:
        past = []
        while self._prunable and self._prunable[0][0] <= now:
            prune_at, id = heappop(self._prunable)
            record = self.by_id.get(id)
            if record is not None and record.prune_at == prune_at:
                past.append((prune_at, id))
        for entry in dict.fromkeys(past):  # held ones and those beyond the limit must be found again
            heappush(self._prunable, entry)
        return [id for _, id in past]

    def _beyond_keep_last(self) -> list[str]:
        """Ended jobs that have `keep_last` newer ones of their task."""
        beyond = []
        for group in self._counted:
            ended = [self.by_id[id] for id in self._ended[group]]
            ended.sort(key=lambda record: (record.finished_at or 0, record.id), reverse=True)
            beyond += [
                record.id
                for newer, record in enumerate(ended)
                if record.keep_last is not None and newer >= record.keep_last
            ]
        return beyond


def _group(record: Record) -> Group:
    return record.task, record.state is State.DEAD
