"""Brings back jobs whose lease is over.

A job that was alone in its dead worker is charged with the loss; three charged losses make it a dead letter (poison). If
the worker held several jobs, none is charged: all become suspects and run alone from then on, until the handler ends an
attempt by itself. Noted starts cannot clear a job: the start of one that kills its worker within a moment is never noted,
while that of a long-running neighbour is.

The leases of a dead worker end one after the other. While it still holds others whose lease ends soon, its jobs wait for
those: only together they show whether one was alone. No job waits longer than its own lease after the last sign of its
worker. Jobs that were ended from outside only give up their hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..core.clock import SECOND
from ..core.job import FINAL, WAITING, State
from ..core.lifecycle import Change, LeaseLapsed, decide
from ..core.record import Fault, Record
from ..flow.compensation import add_undos
from ..observe import log
from ..storage.contract import Filter, Storage

LIFE = 86_400 * SECOND  # how long ago a worker may have been seen last


async def reap(store: Storage, records: Sequence[Record]) -> int:
    """Bring lapsed jobs back. Returns how many."""
    if not records:
        return 0
    still_held = await _still_held(store, records)
    now = await store.now()
    changes = await add_undos(store, list(changes_of(records, now, still_held)))
    verdicts = await store.apply(changes) if changes else []
    by_id = {record.id: record for record in records}
    for change, verdict in zip(changes, verdicts, strict=True):
        if verdict.accepted and change.state is not None:
            log.reaped(by_id[change.id], change.losses > by_id[change.id].losses)
    return sum(verdict.accepted for verdict in verdicts)


def changes_of(
    records: Sequence[Record], now: int, still_held: Mapping[str, Sequence[Record]] | None = None
) -> Iterable[Change]:
    """The change for each lapsed job, worker by worker. `still_held`: what else a worker held when it died, or holds because
    it lives."""
    by_worker: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_worker[record.leased_by or ""].append(record)
    for worker, group in by_worker.items():
        others = (still_held or {}).get(worker, ())
        for record in group:
            if record.state in FINAL:
                yield decide(record, LeaseLapsed())
            elif record.state in WAITING:
                continue  # no holder could have left it so: the store repairs it
            elif not others or _may_decide(group, others, now):
                alone = not others and len(group) == 1
                yield decide(record, LeaseLapsed(_fault(record, now), charged=alone, suspect=not alone))


def _may_decide(group: Sequence[Record], others: Sequence[Record], now: int) -> bool:
    """Whether all leases of this length have ended if the worker died after its last sign. A worker that lives gives
    signs all the time: renewed every third of a lease, these would have ended together with others half a lease ago."""
    last_sign = max(map(_last_sign, (*group, *others)))
    return any(now >= min(last_sign + record.lease, (record.leased_until or 0) + record.lease // 2) for record in group)


async def _still_held(store: Storage, lapsed: Sequence[Record]) -> dict[str, list[Record]]:
    """What the workers of these jobs hold besides."""
    lost_at: dict[str, int] = {}
    for record in lapsed:
        if record.state not in FINAL:
            worker = record.leased_by or ""
            lost_at[worker] = max(lost_at.get(worker, 0), _last_sign(record))
    known = {record.id for record in lapsed}
    running = await _running(store) if lost_at else []
    others = [record for record in running if record.leased_by in lost_at and record.id not in known]
    if not others:
        return {}
    # a worker with a name of its own that was started again holds its new jobs under the old name
    lives = {row.id: row.started_at for row in await store.workers(LIFE)}
    held: defaultdict[str, list[Record]] = defaultdict(list)
    for record in others:
        worker = record.leased_by or ""
        began = lives.get(worker, 0)
        if not lost_at[worker] < began <= _last_sign(record):
            held[worker].append(record)
    return held


async def _running(store: Storage) -> list[Record]:
    records: list[Record] = []
    cursor: str | None = None
    while True:
        page, cursor = await store.find(Filter(states=(State.RUNNING,)), store.chunk, cursor)
        records += page
        if cursor is None:
            return records


def _last_sign(record: Record) -> int:
    """When its worker last claimed or renewed it."""
    return (record.leased_until or 0) - record.lease


def _fault(record: Record, now: int) -> Fault:
    ended = min(record.leased_until or now, now)
    return Fault(
        attempt=record.attempt,
        worker=record.leased_by or "",
        started_at=record.started_at or max(ended - record.lease, 0),
        ended_at=ended,
        kind="WorkerLost",
        message=f"the lease of worker {record.leased_by} ended without a word from it",
    )
