"""Fires the schedules that are due: read, decide, write under guards, in batches. Any number of workers may do it at once.

A schedule that cannot fire does not hold up the others. If its queue is full, its ticks wait a few seconds and are tried
again. One that cannot be read or written is logged, and tried again after a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ..core.clock import SECOND
from ..core.job import FINAL
from ..errors import PerdureError, StoreError
from ..observe import log
from ..storage.contract import KvEntry, KvWrite, QueueAtCapacity, Storage
from .schedule import KIND, UNREADABLE, Schedule, fire_due, read, write

FULL_AGAIN = 5 * SECOND
BROKEN_AGAIN = 30 * SECOND
ALIVE = 60 * SECOND  # a worker that was seen within this time is there


class Fired(NamedTuple):
    """What one round did: the jobs that it made, and whether there is more to do at once."""

    jobs: int
    again: bool


class _Move(NamedTuple):
    row: KvEntry
    schedule: Schedule
    write: KvWrite


async def fire(store: Storage, now: int, known: Collection[str]) -> Fired:
    """Fire what is due by `now`, which the store's clock has reached. `known`: the tasks of this worker's app; what was
    declared in code for another task is fired too, unless no worker is there that knows it."""
    rows = await store.kv_read(KIND, due=True, limit=store.chunk)
    due = [(row, schedule) for row in rows if (schedule := await _read_or_postpone(store, row, now)) is not None]
    due = [(row, schedule) for row, schedule in due if schedule.next is None or schedule.next <= now]
    busy = await _find_unfinished(store, [schedule.last_job for _, schedule in due if schedule.overlap == "skip"])
    away = await _find_unknown_tasks(
        store, {schedule.job.task for _, schedule in due if schedule.declared is not None} - set(known)
    )
    moves = []
    for row, schedule in due:
        try:
            moves.append(_move(row, schedule, now, busy, away))
        except (PerdureError, *UNREADABLE) as error:  # e.g. a time zone that this machine does not know
            await _postpone(store, [row], now + BROKEN_AGAIN)
            log.schedule_broken(row.name, error)
    made = 0
    for batch in _batches(moves, store.chunk):
        made += await _store_moves(store, batch, now)
    behind = any(move.schedule.next is not None and move.schedule.next <= now for move in moves if move.write.jobs)
    return Fired(made, behind or len(rows) >= store.chunk)


async def _read_or_postpone(store: Storage, row: KvEntry, now: int) -> Schedule | None:
    try:
        return read(row)
    except UNREADABLE as error:
        await _postpone(store, [row], now + BROKEN_AGAIN)
        log.schedule_broken(row.name, error)
        return None


async def _find_unfinished(store: Storage, ids: Sequence[str | None]) -> set[str]:
    """Those of these jobs that are not over."""
    given = [id for id in ids if id is not None]
    records = await store.get(given) if given else []
    return {record.id for record in records if record is not None and not record.hidden and record.state not in FINAL}


async def _find_unknown_tasks(store: Storage, tasks: set[str]) -> set[str]:
    """Those of these tasks that no worker knows."""
    if not tasks:
        return tasks
    for worker in await store.workers(ALIVE):
        theirs = worker.read_tasks("known", "tasks")
        tasks = set() if theirs is None else tasks.difference(theirs)
    return tasks


def _move(row: KvEntry, schedule: Schedule, now: int, busy: set[str], away: set[str]) -> _Move:
    if schedule.declared is not None and schedule.job.task in away:
        orphan = msgspec.structs.replace(schedule, orphan="away")
        return _Move(row, orphan, write(row.name, orphan, row.version))
    moved, jobs = fire_due(row.name, schedule, now, busy=schedule.last_job in busy)
    return _Move(row, moved, write(row.name, moved, row.version, jobs=jobs))


def _batches(moves: Iterable[_Move], chunk: int) -> Iterator[list[_Move]]:
    """Pieces of at most a chunk of jobs, or of schedules."""
    batch: list[_Move] = []
    jobs = 0
    for move in moves:
        if batch and (len(batch) == chunk or jobs + len(move.write.jobs) > chunk):
            yield batch
            batch, jobs = [], 0
        batch.append(move)
        jobs += len(move.write.jobs)
    if batch:
        yield batch


async def _store_moves(store: Storage, moves: Sequence[_Move], now: int) -> int:
    """Write what can be written; how many jobs were made. What is refused was moved by somebody else."""
    if not moves:
        return 0
    try:
        done = await store.kv_write([move.write for move in moves])
    except QueueAtCapacity as full:
        return await _store_what_fits(store, moves, full, now)
    except StoreError:
        raise
    except Exception as error:
        if len(moves) > 1:
            half = len(moves) // 2
            return await _store_moves(store, moves[:half], now) + await _store_moves(store, moves[half:], now)
        await _postpone(store, [moves[0].row], now + BROKEN_AGAIN)
        log.schedule_broken(moves[0].row.name, error)
        return 0
    for move, held in zip(moves, done, strict=True):
        if held and move.schedule.orphan is not None:
            log.schedule_orphaned(move.row.name, move.schedule.job.task)
    return sum(len(move.write.jobs) for move, held in zip(moves, done, strict=True) if held)


async def _store_what_fits(store: Storage, moves: Sequence[_Move], full: QueueAtCapacity, now: int) -> int:
    """A queue has no room for all of these: those that fit and those of other queues are written, the rest wait."""
    found = (await store.queue_capacities()).get(full.queue)
    room = 0 if found is None else found.left
    fitting: list[_Move] = []
    waiting: list[_Move] = []
    for move in moves:
        room -= len(move.write.jobs) if move.schedule.job.queue == full.queue else 0
        (waiting if room < 0 and move.schedule.job.queue == full.queue else fitting).append(move)
    if not waiting:  # there was none a moment ago: whoever comes first
        waiting = [move for move in moves if move.schedule.job.queue == full.queue]
        fitting = [move for move in moves if move.schedule.job.queue != full.queue]
    await _postpone(store, [move.row for move in waiting], now + FULL_AGAIN)
    log.schedules_found_full([move.row.name for move in waiting], full.queue)
    return await _store_moves(store, fitting, now)


async def _postpone(store: Storage, rows: Sequence[KvEntry], until: int) -> None:
    """Make these schedules due again later, and change nothing else."""
    await store.kv_write([KvWrite(KIND, row.name, row.text, row.version, until) for row in rows])
