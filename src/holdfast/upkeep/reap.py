"""Reap: jobs whose lease is over come back.

Who killed the worker? If exactly one of its lapsed jobs had begun, that one is charged with the loss; three charged
losses make it a dead letter (poison). If several had, none is charged: they are marked suspect and run alone from then on,
until one attempt ends by the handler's own word. Where no start was noted (the worker died at once), all that it held
count as begun. Jobs ended from outside only give up their hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..job import FINAL, Fault, Record
from ..lifecycle import Change, LeaseEnded, decide
from ..observe import log
from ..storage.contract import Storage


async def reap(store: Storage, contact: int, limit: int) -> int:
    """Bring lapsed jobs back; gives how many."""
    records = await store.lapsed(limit, contact)
    if not records:
        return 0
    now = await store.now()
    changes = list(changes_of(records, now))
    verdicts = await store.apply(changes)
    by_id = {record.id: record for record in records}
    for change, verdict in zip(changes, verdicts, strict=True):
        if verdict.accepted and change.state is not None:
            log.reaped(by_id[change.id], change.losses > by_id[change.id].losses)
    return sum(verdict.accepted for verdict in verdicts)


def changes_of(records: Sequence[Record], now: int) -> Iterable[Change]:
    """What follows for each lapsed job, worker by worker."""
    by_worker: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.state in FINAL:
            yield decide(record, LeaseEnded())
        else:
            by_worker[record.leased_by or ""].append(record)
    for group in by_worker.values():
        begun = [record for record in group if record.started_at is not None] or group
        accused = {record.id for record in begun}
        for record in group:
            if record.id in accused:
                yield decide(record, LeaseEnded(_fault(record, now), len(begun) == 1, len(begun) > 1))
            else:
                yield decide(record, LeaseEnded())


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
