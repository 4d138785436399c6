"""Brings the schedules that code declares in line with the stored ones.

A declared schedule is written when it is new, and when its declaration changed. Otherwise the stored one is right: it has
the pause, the count and the next tick. A schedule that the app's code no longer declares, although the app has its task,
becomes an orphan: it stays stored and does not fire. Schedules of tasks that this app does not know belong to other apps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import msgspec

from ..observe import log
from ..storage.contract import KvEntry, KvWrite, Storage
from .schedule import KIND, UNREADABLE, Schedule, hash_of, read, replace_rule, start_from, write

TRIES = 20  # against others who write the same schedules


async def all_rows(store: Storage) -> AsyncIterator[KvEntry]:
    """Every stored schedule, by name."""
    rows = await store.kv_read(KIND, limit=store.chunk)
    while True:
        ours = [row for row in rows if row.kind == KIND]
        for row in ours:
            yield row
        if len(ours) < store.chunk:
            return
        rows = await store.export_kv((KIND, ours[-1].name), store.chunk)


async def reconcile(
    store: Storage, declared: Mapping[str, Schedule], known: Collection[str], since: int | None = None
) -> None:
    """Bring the stored schedules in line with the code. New schedules begin at `since`, or now."""
    for _ in range(TRIES):
        stored = {row.name: row async for row in all_rows(store)}
        now = await store.now()
        writes = [
            each
            for name, new in declared.items()
            if (each := write_to_declare(name, new, stored.get(name), now, since))
        ]
        writes += [
            each
            for name, row in stored.items()
            if name not in declared and (each := _write_to_orphan(name, row, known))
        ]
        refused = False
        for start in range(0, len(writes), store.chunk):
            refused |= not all(await store.kv_write(writes[start : start + store.chunk]))
        if not refused:
            return


def write_to_declare(
    name: str, new: Schedule, row: KvEntry | None, now: int, since: int | None = None
) -> KvWrite | None:
    """The write that stores a declared schedule; None if it is stored already."""
    new = msgspec.structs.replace(new, declared=hash_of(new))
    if row is None:
        return write(name, start_from(new, now if since is None else since), 0)
    stored = readable(row)
    if stored is None or (stored.declared == new.declared and stored.orphan is None):
        return None
    if stored.declared == new.declared:
        return write_to_revive(name, stored, row.version)
    return write(name, replace_rule(stored, new, now), row.version)


def write_to_revive(name: str, orphan: Schedule, version: int) -> KvWrite:
    """An orphan's code is back: it goes on at its next tick, which may be a missed one by now."""
    return write(name, msgspec.structs.replace(orphan, orphan=None), version)


def readable(row: KvEntry) -> Schedule | None:
    """The schedule of a row; None if it cannot be read, which is logged."""
    try:
        return read(row)
    except UNREADABLE as error:
        log.schedule_broken(row.name, error)
        return None


def _write_to_orphan(name: str, row: KvEntry, known: Collection[str]) -> KvWrite | None:
    stored = readable(row)
    if stored is None or stored.declared is None or stored.orphan == "removed" or stored.job.task not in known:
        return None
    log.schedule_orphaned(name, stored.job.task)
    return write(name, msgspec.structs.replace(stored, orphan="removed"), row.version)
