"""Applies changes: each is written if its guard holds, and refused alone if not.

Ordinary successes take a fast path. Every other change is judged in Python by its row under the write lock and then written,
with the jobs that it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Change, KeyMove
from perdure.core.record import NewJob, Record
from perdure.storage.contract import ACCEPTED, REFUSED, MissingParent, Refusal, Verdict
from perdure.storage.rules.guards import judge
from perdure.storage.rules.records import owners_among, write_change

from ..connection.work import Work
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.records import Many, position_of
from .enqueue import PreparedJobs, check_parents, enqueue, special_queues
from .fast_success import OrdinarySuccesses, try_fast_success
from .guard_rows import GuardRow, read_and_mend

_sql = load("apply")
_UPDATE = Many(_sql["update_jobs"], 22, (100, 10, 1))
_UPDATE_BODIES = Many(_sql["update_bodies"], 3, (100, 10, 1))
_RELEASE = Many(_sql["release"], 1, (100, 10, 1))


class PreparedChanges:
    """Changes, prepared by the event loop for the writer's thread: that thread then does little but wait for SQLite, which
    needs no interpreter."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.all = changes
        # a key can be taken only in the order of the list
        in_order = any(change.key is KeyMove.TAKE for change in changes)
        self.successes = OrdinarySuccesses(() if in_order else changes)
        only_successes = len(self.successes.changes) == len(changes)
        self.adds = [] if only_successes else [job for change in changes for job in change.adds]


def missing_parent_of(work: Work, adds: Sequence[NewJob]) -> MissingParent | None:
    """The refusal if a change would add a job whose parent is not stored: then nothing is to be written."""
    try:
        check_parents(work.connection, adds)
    except MissingParent as refusal:
        return refusal
    return None


def apply(work: Work, changes: PreparedChanges, now: int) -> list[Verdict]:
    """Apply the changes; the verdicts are in their order."""
    written = try_fast_success(work, changes.successes, now) or ()
    if len(written) == len(changes.all):
        return [ACCEPTED] * len(written)
    done = {change.id for change in written}
    verdicts = _ChangeBatch(work, [change for change in changes.all if change.id not in done], now).apply()
    return [ACCEPTED if change.id in done else verdicts[change.id] for change in changes.all]


class _ChangeBatch:
    """The changes of one call, in order. Rows are collected and written together where the order allows it."""

    def __init__(self, work: Work, changes: Sequence[Change], now: int) -> None:
        self._work = work
        self._changes = changes
        self._now = now
        self._rows = read_and_mend(work, [change.id for change in changes], now)
        self._updates: list[tuple[Any, ...]] = []
        self._body_updates: list[tuple[Any, ...]] = []
        self._released: list[tuple[Any, ...]] = []
        self._parked: list[str] = []
        self._added: list[NewJob] = []
        self._special = special_queues(work.connection) if any(change.adds for change in changes) else {}

    def apply(self) -> dict[str, Verdict]:
        verdicts = {}
        for change in self._changes:
            row = self._rows.get(change.id)
            verdicts[change.id] = verdict = self._judge(row, change)
            if row is not None and verdict is ACCEPTED:
                self._write(row, change)
                self._add_jobs(change)
        self._flush()
        self._enqueue_added()
        return verdicts

    def _judge(self, row: GuardRow | None, change: Change) -> Verdict:
        verdict = judge(row, change, self._now)
        if verdict is ACCEPTED and row is not None and change.key is KeyMove.TAKE and not self._can_take_key(row):
            return REFUSED[Refusal.KEY_TAKEN]
        return verdict

    def _can_take_key(self, row: GuardRow) -> bool:
        if row.unique_key is None:
            return True
        self._flush()  # an earlier change of this call may have freed or taken it
        owners = self._work.connection.rows(_sql["key_owner"], (row.unique_key,))
        return not owners or owners[0][0] == row.id

    def _write(self, row: GuardRow, change: Change) -> None:
        if row.limits is not None and row.stamp is not None and not (change.state and change.keeps_hold):
            self._work.ready.add(row.queue)  # its limits have room again
        write_change(cast(Record, row), change, self._now)
        if change.state is None:
            self._released.append((row.id,))
            self._work.changed = True
            return
        self._updates.append(_update_of(row))
        if change.errors is not None or change.next_id is not None:
            self._body_updates.append((row.id, change.errors, change.next_id))
        if row.state is State.READY or row.state is State.SCHEDULED:
            self._work.ready.add(row.queue)
        elif row.state in FINAL:
            self._work.changed = True
        if row.parked:
            self._parked.append(row.id)
        if change.key is KeyMove.TAKE:
            self._flush()

    def _add_jobs(self, change: Change) -> None:
        """Jobs that nothing else in this call depends on are enqueued together at the end, all others at once."""
        self._added += change.adds
        if any(job.unique_key is not None or job.queue in self._special for job in change.adds):
            self._flush()
            owners = self._enqueue_added()
            if change.next_id in owners:
                self._work.connection.change(_sql["set_next"], (owners[change.next_id], change.id))

    def _enqueue_added(self) -> dict[str, str]:
        """Enqueue the collected jobs; returns the owners of the keys of those that were duplicates, by job."""
        if not self._added:
            return {}
        added, self._added = self._added, []
        results = enqueue(self._work, PreparedJobs(added), self._now, bounded=False)
        if results is None:
            return {}
        if not isinstance(results, list):
            raise results
        return owners_among(added, results)

    def _flush(self) -> None:
        """Write what was collected."""
        _UPDATE.run(self._work.connection, self._updates)
        _UPDATE_BODIES.run(self._work.connection, self._body_updates)
        _RELEASE.run(self._work.connection, self._released)
        register_gates(self._work, self._parked)
        self._updates, self._body_updates, self._released, self._parked = [], [], [], []


def _update_of(row: GuardRow) -> tuple[Any, ...]:
    """The values of a changed row, in the order of the statement."""
    return (
        row.id, row.state.value, row.failures, row.losses, int(row.suspect), int(row.parked), row.run_at, row.rank,
        row.result, row.reason, row.started_at, row.finished_at, row.prune_at, row.keep_last, int(row.hidden),
        row.stamp, row.accepted_stamp, row.leased_by, row.leased_until, int(row.holds_key),
        *position_of(row.state.value, parked=row.parked, suspect=row.suspect),
    )  # fmt: skip
