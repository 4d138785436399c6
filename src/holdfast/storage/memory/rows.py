"""The rows of the memory store and what may happen to them: the specification that every store is held to.

Everything here is plain and synchronous and happens under the store's lock. Each row is found through indexes (lanes,
schedule, holds, ended ones, depth); a row is lifted out of all of them before it changes and set back afterwards,
so that no change can forget one. Heaps keep dead entries until they come to the head.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from heapq import heappop, heappush

from holdfast.errors import StoreError
from holdfast.job import FINAL, ROW_VERSION, WAITING, Hold, NewJob, Record, State
from holdfast.lifecycle import Change, KeyMove
from holdfast.storage.contract import (
    ACCEPTED,
    REFUSED,
    Claim,
    KeptKey,
    Placed,
    QueueSettings,
    Refusal,
    Started,
    Verdict,
    Want,
)
from holdfast.storage.guards import judged, standing
from holdfast.storage.rules import KeyName, is_expired, key_ends, key_name, plan, record_of, write_change, write_claim

from .lanes import Lanes

Owner = tuple[str, int | None]  # job, until when
Group = tuple[str, bool]  # task, dead?


class Rows:
    """All jobs, keys and queue settings. `woken` and `changed` gather what listeners are to be told."""

    def __init__(self) -> None:
        self.by_id: dict[str, Record] = {}
        self.settings: dict[str, QueueSettings] = {}
        self.depth: Counter[str] = Counter()
        self.woken: set[str] = set()
        self.changed = False
        self._keys: dict[KeyName, Owner] = {}
        self._lanes = Lanes()
        self._schedule: list[tuple[int, str]] = []
        self._held: set[str] = set()
        self._expiring: set[str] = set()
        self._prunable: list[tuple[int, str]] = []
        self._ended: defaultdict[Group, set[str]] = defaultdict(set)
        self._counted: set[Group] = set()

    # ---- enqueue -----------------------------------------------------------------------------------
    def plan(self, jobs: Sequence[NewJob], now: int) -> tuple[list[Placed], list[NewJob]]:
        """What would become of these jobs, and those of them that would be stored. Writes nothing."""
        return plan(jobs, self.by_id, lambda name: self._owner(name, now), self.settings.get, lambda q: self.depth[q])

    def add(self, job: NewJob, now: int) -> None:
        record = record_of(job, now)
        name = key_name(job)
        if name is not None:
            self._keys[name] = (job.id, key_ends(job, now))
        self.by_id[job.id] = record
        self._set_back(record)

    def _owner(self, name: KeyName, now: int) -> str | None:
        id, until = self._keys.get(name, (None, None))
        return None if until is not None and until <= now else id

    # ---- moving house ------------------------------------------------------------------------------
    def restore(self, records: Sequence[Record]) -> None:
        """Put records on record as they are, in place of what is known under their ids."""
        for record in records:
            owner, _ = self._keys.get((False, record.unique_key or ""), (record.id, None))
            if record.holds_key and owner not in {each.id for each in records}:
                raise StoreError(f"the unique key of job {record.id} is held by job {owner}")
        for record in records:
            if record.id in self.by_id:
                self._free_key(self.by_id[record.id])
                self._lift(self.by_id.pop(record.id))
        for record in records:
            if record.holds_key and record.unique_key is not None:
                self._keys[False, record.unique_key] = (record.id, None)
            self.by_id[record.id] = copy(record)
            self._set_back(self.by_id[record.id])
            self.changed |= record.state in FINAL

    def kept_keys(self) -> list[KeptKey]:
        return [KeptKey(key, job, ends) for (apart, key), (job, ends) in sorted(self._keys.items()) if apart]

    def restore_keys(self, keys: Iterable[KeptKey]) -> None:
        for kept in keys:
            self._keys[True, kept.key] = (kept.job, kept.ends)

    # ---- apply -------------------------------------------------------------------------------------
    def judge(self, change: Change, now: int) -> Verdict:
        """Whether the change would take hold. Writes nothing."""
        record = self.by_id.get(change.id)
        verdict = judged(record, change, now)
        if verdict is ACCEPTED and record is not None and change.key is KeyMove.TAKE and not self._can_take_key(record):
            return REFUSED[Refusal.KEY_TAKEN]
        return verdict

    def write(self, change: Change, now: int) -> None:
        """Write a change that was judged to take hold."""
        record = self.by_id[change.id]
        self._lift(record)
        if change.state is None or change.key is KeyMove.FREE:
            self._free_key(record)
        elif change.key is KeyMove.TAKE and record.unique_key is not None:
            self._keys[False, record.unique_key] = (record.id, None)
        write_change(record, change, now)
        self._set_back(record)
        self.changed |= record.state in FINAL

    def _can_take_key(self, record: Record) -> bool:
        if record.unique_key is None:
            return True
        owner, _ = self._keys.get((False, record.unique_key), (None, None))
        return owner in (None, record.id)

    def _free_key(self, record: Record) -> None:
        if record.holds_key and record.unique_key is not None:
            del self._keys[False, record.unique_key]
        record.holds_key = False

    # ---- holds -------------------------------------------------------------------------------------
    def standing(self, hold: Hold) -> Record | Verdict:
        """The row that runs under this hold, or why there is none."""
        record = self.by_id.get(hold.id)
        verdict = standing(record, hold)
        return record if record is not None and verdict is ACCEPTED else verdict

    def note_started(self, started: Iterable[Started]) -> None:
        for note in started:
            record = self.standing(note.hold)
            if isinstance(record, Record):
                record.started_at = note.at

    def held(self) -> list[Record]:
        return [self.by_id[id] for id in self._held]

    # ---- claim -------------------------------------------------------------------------------------
    def claim(self, claim: Claim, now: int) -> list[Record]:
        claimed = [self.by_id[id] for want in claim.wants for id in self._take(want, now, want.limit, want.alone)]
        for record in claimed:
            self._lift(record)
            if record.unique_scope == "waiting":
                self._free_key(record)
            write_claim(record, claim, now)
            self._set_back(record)
        return [copy(record) for record in claimed]

    def any_suspect(self, wants: Iterable[Want], now: int) -> bool:
        for want in wants:
            for id in self._take(want, now, 1, alone=True):
                self._lanes.put(self.by_id[id])
                return True
        return False

    def _take(self, want: Want, now: int, limit: int, alone: bool) -> list[str]:
        paused = {name for name, settings in self.settings.items() if settings.paused}
        return self._lanes.take(
            lambda lane: lane.queue not in paused and lane.wanted(want, alone=alone),
            lambda id: not is_expired(self.by_id[id], now),
            limit,
        )

    # ---- upkeep ------------------------------------------------------------------------------------
    def promote(self, limit: int, now: int) -> int:
        promoted = 0
        while promoted < limit and (due := self.next_due()) is not None and due <= now:
            record = self.by_id[heappop(self._schedule)[1]]
            self._lift(record)
            record.state = State.READY
            record.version += 1
            self._set_back(record)
            promoted += 1
        return promoted

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

    def prune(self, limit: int, now: int) -> int:
        self._keys = {name: (id, until) for name, (id, until) in self._keys.items() if until is None or until > now}
        gone = [id for id in self._past_their_time(now) + self._too_many() if self.by_id[id].stamp is None]
        gone = list(dict.fromkeys(gone))[:limit]
        for id in gone:
            self._lift(self.by_id.pop(id))
        return len(gone)

    def _past_their_time(self, now: int) -> list[str]:
        past = []
        while self._prunable and self._prunable[0][0] <= now:
            prune_at, id = heappop(self._prunable)
            record = self.by_id.get(id)
            if record is not None and record.prune_at == prune_at:
                past.append((prune_at, id))
        for entry in dict.fromkeys(past):  # held ones and those beyond the limit must be found again
            heappush(self._prunable, entry)
        return [id for _, id in past]

    def _too_many(self) -> list[str]:
        """Ended jobs that have `keep_last` newer ones of their task."""
        too_many = []
        for group in self._counted:
            ended = [self.by_id[id] for id in self._ended[group]]
            ended.sort(key=lambda record: (record.finished_at or 0, record.id), reverse=True)
            too_many += [
                record.id
                for newer, record in enumerate(ended)
                if record.keep_last is not None and newer >= record.keep_last
            ]
        return too_many

    # ---- indexes -----------------------------------------------------------------------------------
    def _lift(self, record: Record) -> None:
        """Take a row out of its indexes, before it changes."""
        if record.state in WAITING:
            self.depth[record.queue] -= 1
            self._expiring.discard(record.id)
            self._lanes.drop(record.id)
        self._held.discard(record.id)
        self._ended[_group(record)].discard(record.id)

    def _set_back(self, record: Record) -> None:
        """Put a row where it belongs as it is now."""
        if record.state in WAITING:
            self.depth[record.queue] += 1
            if record.expires_at is not None:
                self._expiring.add(record.id)
        if record.state is State.SCHEDULED:
            heappush(self._schedule, (record.run_at, record.id))
        if record.state is State.READY:
            self.woken.add(record.queue)
            if not record.parked and record.min_version <= ROW_VERSION:
                self._lanes.put(record)
        if record.stamp is not None:
            self._held.add(record.id)
        if record.prune_at is not None:
            heappush(self._prunable, (record.prune_at, record.id))
        if record.state in FINAL and not record.hidden:
            self._ended[_group(record)].add(record.id)
            if record.keep_last is not None:
                self._counted.add(_group(record))


def _group(record: Record) -> Group:
    return record.task, record.state is State.DEAD
