"""note and log: progress and lines of the holder, and of nobody else."""

from __future__ import annotations

import msgspec

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, Succeeded
from perdure.core.retention import Retention
from perdure.storage.contract import LOG_LINES, Note, Refusal, Storage

from ..tools import Hand, accepted, changed, job, refused, running, same, seen, told, untouched


async def case_progress(store: Storage, clock: Hand) -> None:
    record = await running(store)
    accepted((await store.note([Note(record.hold, '{"percent":40}')]))[0], "a note under a hold that stands")
    changed(record, await seen(store, record.id), "progress", progress='{"percent":40}')
    await store.note([Note(record.hold, None, ("line",))])
    same((await seen(store, record.id)).progress, '{"percent":40}', "a note without progress leaves it")
    after = await told(store, record.id, Succeeded())
    same(after.progress, '{"percent":40}', "progress stays after the end")


async def case_lines(store: Storage, clock: Hand) -> None:
    record, other = await running(store), await running(store)
    notes = [Note(record.hold, None, ("a", "b")), Note(other.hold, None, ("x",)), Note(record.hold, None, ("c",))]
    for verdict in await store.note(notes):
        accepted(verdict, "a note")
    await store.note([Note(record.hold, None, ("d",))])
    same(await store.log(record.id), ["a", "b", "c", "d"], "lines are appended in order, oldest first")
    same(await store.log(other.id), ["x"], "each job has its own log")
    await told(store, record.id, Succeeded())
    same(len(await store.log(record.id)), 4, "the log stays after the end")


async def case_the_last_hundred_lines(store: Storage, clock: Hand) -> None:
    record = await running(store)
    lines = [f"line {n}" for n in range(250)]
    for start in range(0, 250, 40):
        await store.note([Note(record.hold, None, tuple(lines[start : start + 40]))])
    same(await store.log(record.id), lines[-LOG_LINES:], "the last 100 lines are kept")
    await store.note([Note(record.hold, None, tuple(lines))])
    same(await store.log(record.id), lines[-LOG_LINES:], "also when one note brings more than that")


async def case_refused(store: Storage, clock: Hand) -> None:
    record, cancelled = await running(store), await running(store)
    ended = await told(store, cancelled.id, Cancelled())
    stale = msgspec.structs.replace(record.hold, stamp=new_stamp())
    nowhere = msgspec.structs.replace(record.hold, id=job().id)
    notes = [Note(hold, "1", ("x",)) for hold in (stale, cancelled.hold, nowhere, record.hold)]
    verdicts = await store.note(notes)
    refused(verdicts[0], Refusal.TAKEN, "a note under another stamp")
    refused(verdicts[1], Refusal.CANCELLED, "a note about a cancelled job")
    refused(verdicts[2], Refusal.NOT_FOUND, "a note about an unknown job")
    accepted(verdicts[3], "a note beside refused ones")
    untouched(ended, await seen(store, cancelled.id), "a refused note")
    same(await store.log(cancelled.id), [], "a refused note leaves no line")
    same(await store.log(record.id), ["x"], "a refused note leaves no line")


async def case_log_of_nothing(store: Storage, clock: Hand) -> None:
    same(await store.log(job().id), [], "an unknown job has no lines")
    same(await store.note([]), [], "an empty list is answered by an empty list")


async def case_log_goes_with_its_job(store: Storage, clock: Hand) -> None:
    record = await running(store, retention=Retention.keep(age=0).text())
    await store.note([Note(record.hold, None, ("x",))])
    await told(store, record.id, Succeeded())
    clock.advance(600)
    same(await store.prune(9), 1, "the job is pruned")
    same(await store.log(record.id), [], "its lines go with it")
