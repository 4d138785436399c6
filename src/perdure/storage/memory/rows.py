"""The rows of the memory store and what may happen to them: the specification that every store is compared with.

Everything here is synchronous and happens under the store's lock. `indexes` finds the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from heapq import heappop

from msgspec.structs import replace

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Cancelled, Change, KeyMove, decide
from perdure.core.record import Hold, NewJob, Record
from perdure.errors import StoreError
from perdure.storage.contract import (
    ACCEPTED,
    PARENT_CANCELLED,
    REFUSED,
    Claim,
    EnqueueResult,
    JobDump,
    KeptKey,
    KvWrite,
    QueueSettings,
    Refusal,
    Started,
    Verdict,
    Want,
)
from perdure.storage.rules.fairness import Account, accounts_of, assign_ranks, floor_of
from perdure.storage.rules.guards import check_hold, judge
from perdure.storage.rules.limits import Gate, Starts, Use, admit_jobs, keys_of, limits_of, why_closed
from perdure.storage.rules.records import (
    EdgeDecision,
    KeyName,
    decide_edge,
    is_expired,
    is_gone,
    is_removable,
    key_ends,
    key_name,
    owners_among,
    parents_of,
    plan,
    record_of,
    refuse_missing_parents,
    set_state,
    write_change,
    write_claim,
    write_close,
    write_hidden,
)
from perdure.storage.rules.unreadable import flaw_of

from .inspection import InspectedRows
from .kv import KvTable


class Rows(InspectedRows):
    """All jobs, keys and queue settings."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, QueueSettings] = {}
        self._starts: dict[str, Starts] = {}
        self._accounts: dict[Account, int] = {}
        self.kv = KvTable()

    # ---- enqueue -----------------------------------------------------------------------------------
    def plan(
        self, jobs: Sequence[NewJob], now: int, *, bounded: bool = True
    ) -> tuple[list[EnqueueResult], list[NewJob]]:
        """What would become of these jobs, and those of them that would be stored. Writes nothing."""

        def owner(name: KeyName) -> str | None:
            return self._owner(name, now)

        placed, fresh = plan(
            jobs, self.by_id, owner, self.settings.get, lambda queue: self.depth[queue], bounded=bounded
        )
        refuse_missing_parents(fresh, self._followable(fresh))
        return placed, fresh

    def enqueue(self, jobs: Sequence[NewJob], now: int, *, bounded: bool = True) -> list[EnqueueResult]:
        """Store jobs by the rules of `enqueue`, all or none. `resolve_edges` resolves their edges."""
        placed, fresh = self.plan(jobs, now, bounded=bounded)
        for job, rank in zip(fresh, self._ranks(fresh, now), strict=True):
            self._add(job, now, rank)
        return placed

    def _followable(self, fresh: Sequence[NewJob]) -> set[str]:
        """Those that these would wait for, if somebody can wait for them."""
        parents = {parent for job in fresh for parent in parents_of(job.after)}
        return {id for id in parents if (record := self.by_id.get(id)) is not None and not is_gone(record)}

    def _ranks(self, fresh: Sequence[NewJob], now: int) -> list[int | None]:
        fair = {name: settings.weights for name, settings in self.settings.items() if settings.fair}
        sharing = [job for job in fresh if job.queue in fair]
        heads: dict[Account, int] = {}
        for floor in {floor_of(job) for job in sharing}:
            ready = [row.rank for row in self.by_id.values() if _is_head(row, floor)]
            heads[floor] = min(ready, default=0)
        given, changed = assign_ranks(sharing, self._accounts, heads, fair, now)
        self._accounts.update(changed)
        shares = iter(given)
        return [next(shares) if job.queue in fair else None for job in fresh]

    def _add(self, job: NewJob, now: int, rank: int | None) -> None:
        record = record_of(job, now, rank)
        name = key_name(job)
        if name is not None:
            self._keys[name] = (job.id, key_ends(job, now))
        self.by_id[job.id] = record
        self._put_back(record)
        for parent in parents_of(job.after):
            self.edges.add(parent, job.id)

    def _owner(self, name: KeyName, now: int) -> str | None:
        id, until = self._keys.get(name, (None, None))
        return None if until is not None and until <= now else id

    # ---- transfer ----------------------------------------------------------------------------------
    def dump(self, record: Record, lines: Iterable[str]) -> JobDump:
        """A job as it is, with its log and its edges."""
        waits_for, kept_for = self.edges.parents(record.id), self.edges.kept_for(record.id, self._is_over)
        return JobDump(copy(record), tuple(lines), tuple(waits_for), tuple(kept_for))

    def restore(self, jobs: Sequence[JobDump]) -> None:
        """Store jobs as they are, in place of what is stored under their ids."""
        records = [job.record for job in jobs]
        for record in records:
            owner, _ = self._keys.get((False, record.unique_key or ""), (record.id, None))
            if record.holds_key and owner not in {each.id for each in records}:
                raise StoreError(f"the unique key of job {record.id} is held by job {owner}")
        for record in records:
            if record.id in self.by_id:
                self._free_key(self.by_id[record.id])
                self._take_out(self.by_id.pop(record.id))
        for record in records:
            if record.holds_key and record.unique_key is not None:
                self._keys[False, record.unique_key] = (record.id, None)
            self.by_id[record.id] = copy(record)
            self._put_back(self.by_id[record.id])
            self.changed |= record.state in FINAL
        for job in jobs:
            self.edges.close_all(job.record.id)
            for parent in job.waits_for:
                self.edges.add(parent, job.record.id, unresolved=False)
            self.edges.keep(job.record.id, job.kept_for)
        for account, rank in accounts_of(records).items():
            self._accounts[account] = max(rank, self._accounts.get(account, 0))

    def kept_keys(self) -> list[KeptKey]:
        return [KeptKey(key, job, ends) for (apart, key), (job, ends) in sorted(self._keys.items()) if apart]

    def restore_keys(self, keys: Iterable[KeptKey]) -> None:
        for kept in keys:
            self._keys[True, kept.key] = (kept.job, kept.ends)

    # ---- apply -------------------------------------------------------------------------------------
    def judge(self, change: Change, now: int) -> Verdict:
        """Whether the change would take hold. Writes nothing."""
        record = self.by_id.get(change.id)
        verdict = judge(record, change, now)
        if verdict is ACCEPTED and record is not None and change.key is KeyMove.TAKE and not self._can_take_key(record):
            return REFUSED[Refusal.KEY_TAKEN]
        return verdict

    def write(self, change: Change, now: int) -> None:
        """Write a change that was judged to take hold."""
        record = self.by_id[change.id]
        self._take_out(record)
        if change.state is None or change.key is KeyMove.FREE:
            self._free_key(record)
        elif change.key is KeyMove.TAKE and record.unique_key is not None:
            self._keys[False, record.unique_key] = (record.id, None)
        held = record.stamp is not None
        write_change(record, change, now)
        self._put_back(record)
        self.changed |= record.state in FINAL
        if held and record.stamp is None and record.limits is not None:
            self.woken.add(record.queue)
        if record.followed and record.state in FINAL:
            self.edges.unresolved[record.id] = None
        owners = owners_among(change.adds, self.enqueue(change.adds, now, bounded=False))
        if change.next_id in owners:
            record.next_id = owners[change.next_id]

    def _can_take_key(self, record: Record) -> bool:
        if record.unique_key is None:
            return True
        owner, _ = self._keys.get((False, record.unique_key), (None, None))
        return owner in (None, record.id)

    # ---- holds -------------------------------------------------------------------------------------
    def held_record(self, hold: Hold) -> Record | Verdict:
        """The row that runs under this hold, or why there is none."""
        record = self.by_id.get(hold.id)
        verdict = check_hold(record, hold)
        return record if record is not None and verdict is ACCEPTED else verdict

    def note_started(self, started: Iterable[Started]) -> None:
        for note in started:
            record = self.held_record(note.hold)
            if isinstance(record, Record):
                record.started_at = note.at

    # ---- claim -------------------------------------------------------------------------------------
    def claim(self, claim: Claim, now: int) -> list[Record]:
        while True:
            known = len(self.unreadable)
            claimed = self._claim(claim, now)
            if claimed or len(self.unreadable) == known:
                return claimed

    def _claim(self, claim: Claim, now: int) -> list[Record]:
        claimed = []
        for want in claim.wants:
            taken = self._pass_gates(want, now) if want.limited else self._take(want, now, want.limit, want.alone)
            for record in self.readable([self.by_id[id] for id in taken], now):
                self._take_out(record)
                if record.unique_scope == "waiting":
                    self._free_key(record)
                write_claim(record, claim, now)
                self._put_back(record)
                claimed.append(copy(record))
        return claimed

    def gates_open_at(self, wants: Iterable[Want], now: int) -> int | None:
        """When a rate lets a limited job start that one of these wants asks for."""
        opening = []
        for want in wants:
            gates = self._gates(replace(want, limit=1), now) if want.limited else []
            used = self._used(gates)
            for gate in gates:
                why = why_closed(gate.limits, used, now)
                opening.append(now if why is None else why.opens_at)
        return min((at for at in opening if at is not None), default=None)

    def _pass_gates(self, want: Want, now: int) -> list[str]:
        gates = self._gates(want, now)
        passed = admit_jobs(gates, self._used(gates), want.limit, now)
        self._starts.update(passed.starts)
        return passed.ids

    def _gates(self, want: Want, now: int) -> list[Gate]:
        return self._lanes.gates(want, self._paused, lambda id: not is_expired(self.by_id[id], now))

    def _used(self, gates: Iterable[Gate]) -> dict[str, Use]:
        keys = keys_of(gate.limits for gate in gates)
        running = Counter(limit.key for row in self.held() for limit in limits_of(row.limits))
        return {key: Use(running[key], self._starts.get(key, ())) for key in keys}

    def any_suspect(self, wants: Iterable[Want], now: int) -> bool:
        for want in wants:
            for id in self._take(want, now, 1, alone=True):
                self._lanes.put(self.by_id[id])
                return True
        return False

    def _take(self, want: Want, now: int, limit: int, alone: bool) -> list[str]:
        return self._lanes.take(want, limit, self._paused, lambda id: not is_expired(self.by_id[id], now), alone=alone)

    def _paused(self, queue: str) -> bool:
        return queue in self.settings and self.settings[queue].paused

    # ---- edges -------------------------------------------------------------------------------------
    def resolve_edges(self, limit: int, now: int) -> int:
        """Resolve edges, and return how many were checked."""
        looked = 0
        while self.edges.unresolved and looked < limit:
            for parent in sorted(self.edges.unresolved):
                if looked < limit:
                    looked += self._resolve_edges_of(parent, limit - looked, now)
        return looked

    def _resolve_edges_of(self, parent: str, limit: int, now: int) -> int:
        record = self.by_id.get(parent)
        if record is not None:
            record.followed = True
        looked = 1
        for id in self.edges.children(parent):
            child = self.by_id[id]
            what = decide_edge(record, child.run_when)
            if what is EdgeDecision.STAY:
                continue
            if looked > limit:
                return looked
            looked += 1
            self._follow(record, parent, child, what, now)
        del self.edges.unresolved[parent]
        return looked

    def _follow(self, parent: Record | None, id: str, child: Record, what: EdgeDecision, now: int) -> None:
        if child.state is not State.BLOCKED:
            self.edges.close_all(child.id)
        elif what is EdgeDecision.LEAD_ON and parent is not None and not self.edges.leads(parent.next_id, child.id):
            self.edges.lead_from(id, parent.next_id or "", child.id)
        elif what in (
            EdgeDecision.CLOSE,
            EdgeDecision.LEAD_ON,
        ):  # that it waits for the next job of the chain already is enough
            self.edges.close(id, child.id)
            self._take_out(child)
            write_close(child, now)
            self._put_back(child)
        else:
            self.edges.close_all(child.id)
            child.waits = 0
            if flaw_of(child) is not None:
                self._set_aside(child, now)
                return
            self.write(decide(child, Cancelled(PARENT_CANCELLED)), now)

    # ---- kv entries --------------------------------------------------------------------------------
    def try_kv_writes(self, writes: Sequence[KvWrite]) -> tuple[list[bool], KvTable]:
        """Which of these writes are accepted, and the table after them. Changes nothing yet."""
        table = self.kv.copy()
        done = []
        for write in writes:
            is_held = write.hold is None or isinstance(self.held_record(write.hold), Record)
            done.append(is_held and table.fits(write))
            if done[-1]:
                table.write(write)
        return done, table

    # ---- upkeep ------------------------------------------------------------------------------------
    def promote(self, limit: int, now: int) -> int:
        promoted = 0
        while promoted < limit and (due := self.next_due()) is not None and due <= now:
            record = self.by_id[heappop(self._schedule)[1]]
            self._take_out(record)
            set_state(record, State.READY)
            record.version += 1
            self._put_back(record)
            promoted += 1
        return promoted

    def prune(self, limit: int, now: int) -> int:
        self._keys = {name: (id, until) for name, (id, until) in self._keys.items() if until is None or until > now}
        gone = [id for id in self._past_retention(now) + self._beyond_keep_last() if not self._kept(self.by_id[id])]
        gone = list(dict.fromkeys(gone))[:limit]
        removed = []
        for record in [self.by_id[id] for id in gone]:
            self._take_out(record)
            if is_removable(record.hidden, record.finished_at, now):
                removed.append(self.by_id.pop(record.id).id)
            else:
                write_hidden(record)
                self._put_back(record)
        self.edges.forget(removed)
        self.kv.remove_entries_of(removed)
        for id in removed:
            self.unreadable.pop(id, None)
        return len(gone)

    def _kept(self, record: Record) -> bool:
        """Somebody holds it, or needs its result."""
        return record.stamp is not None or self.edges.needed(record.id, self._is_over)

    def _is_over(self, id: str) -> bool:
        return id not in self.by_id or self.by_id[id].state in FINAL


def _is_head(row: Record, floor: Account) -> bool:
    """Whether it may be the head of a fair queue."""
    claimable = row.state is State.READY and not row.parked and not row.suspect
    return claimable and (row.queue, row.priority) == (floor.queue, floor.priority)
