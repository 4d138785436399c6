"""Rows of the memory store that cannot be read: they are set aside, and lost edges are made again."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Unreadable
from perdure.storage.rules.records import EdgeDecision, KeyName, decide_edge, edges_are_lost, parents_of, write_close
from perdure.storage.rules.unreadable import FIELDS, flaw_of, is_leased, mend, raw_text

from .edges import Edges
from .indexes import IndexedRows

Owner = tuple[str, int | None]  # job, until when


class InspectedRows(IndexedRows):
    """Jobs, their edges and their unique keys."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = Edges()
        self.unreadable: dict[str, Unreadable] = {}
        self._keys: dict[KeyName, Owner] = {}
        self._inspected = ""

    def readable(self, records: Iterable[Record], now: int) -> list[Record]:
        """Those of these that can be read. The others are set aside."""
        sound = []
        for record in records:
            if flaw_of(record) is None:
                sound.append(record)
            else:
                self._set_aside(record, now)
        return sound

    def _set_aside(self, record: Record, now: int) -> None:
        values = {name: getattr(record, name) for name in FIELDS}
        mended, fields = mend(values, now)
        self.unreadable[record.id] = Unreadable(record.id, now, "jobs", fields, raw_text(values))
        self._take_out(record)
        self._free_key(record)
        self.edges.close_all(record.id)
        if record.limits is not None:
            self.woken.add(record.queue)
        self.by_id[record.id] = mended
        self._put_back(mended)
        self.changed = True
        if mended.followed:
            self.edges.unresolved[record.id] = None

    def inspect(self, limit: int, now: int) -> int:
        """Check the next `limit` jobs. Returns how many were set aside or put right."""
        behind = sorted(id for id in self.by_id if id > self._inspected)[:limit]
        self._inspected = behind[-1] if len(behind) == limit else ""
        known = len(self.unreadable)
        sound = self.readable((record for id in behind if not is_leased(record := self.by_id[id], now)), now)
        return len(self.unreadable) - known + sum(self._mend_edges(record, now) for record in sound)

    def _mend_edges(self, record: Record, now: int) -> bool:
        """Make lost edges of a blocked job again, and have its parents resolved that do not know of it."""
        if record.state is not State.BLOCKED:
            return False
        open_ones, named = self.edges.parents(record.id), parents_of(record.after)
        if named and edges_are_lost(record.waits, len(open_ones)):
            for parent in named:
                self.edges.add(parent, record.id)
            record.waits = len(self.edges.parents(record.id))
            return True
        if not named and not open_ones and record.waits == 0:
            self._take_out(record)
            record.waits = 1
            write_close(record, now)
            self._put_back(record)
            return True
        unaware = [parent for parent in open_ones if self._does_not_know(parent, record.run_when)]
        self.edges.unresolved.update(dict.fromkeys(unaware))
        return bool(unaware)

    def _does_not_know(self, id: str, run_when: str) -> bool:
        """Whether the edges of a parent have to be resolved, and it is not on the list for that."""
        parent = self.by_id.get(id)
        to_do = parent is None or not parent.followed or decide_edge(parent, run_when) is not EdgeDecision.STAY
        return to_do and id not in self.edges.unresolved

    def _free_key(self, record: Record) -> None:
        if record.holds_key and record.unique_key is not None:
            del self._keys[False, record.unique_key]
        record.holds_key = False
