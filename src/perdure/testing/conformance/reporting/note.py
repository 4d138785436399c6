"""note and log: the store accepts progress and log lines of the holder only."""

from __future__ import annotations

import msgspec

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, Succeeded
from perdure.core.retention import Retention
from perdure.storage.contract import LOG_LINES, Note, Refusal, Storage

from ..tools import (
    MovableClock,
    assert_accepted,
    assert_changed_only,
    assert_equal,
    assert_refused,
    assert_unchanged,
    enqueue_and_claim,
    job,
    read_job,
    report,
)


async def case_progress(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    assert_accepted((await store.note([Note(record.hold, '{"percent":40}')]))[0], "a note with a valid hold")
    assert_changed_only(record, await read_job(store, record.id), "progress", progress='{"percent":40}')
    await store.note([Note(record.hold, None, ("line",))])
    assert_equal((await read_job(store, record.id)).progress, '{"percent":40}', "a note without progress leaves it")
    after = await report(store, record.id, Succeeded())
    assert_equal(after.progress, '{"percent":40}', "progress stays after the end")


async def case_lines(store: Storage, clock: MovableClock) -> None:
    record, other = await enqueue_and_claim(store), await enqueue_and_claim(store)
    notes = [Note(record.hold, None, ("a", "b")), Note(other.hold, None, ("x",)), Note(record.hold, None, ("c",))]
    for verdict in await store.note(notes):
        assert_accepted(verdict, "a note")
    await store.note([Note(record.hold, None, ("d",))])
    assert_equal(await store.log(record.id), ["a", "b", "c", "d"], "lines are appended in order, oldest first")
    assert_equal(await store.log(other.id), ["x"], "each job has its own log")
    await report(store, record.id, Succeeded())
    assert_equal(len(await store.log(record.id)), 4, "the log stays after the end")


async def case_the_last_hundred_lines(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    lines = [f"line {n}" for n in range(250)]
    for start in range(0, 250, 40):
        await store.note([Note(record.hold, None, tuple(lines[start : start + 40]))])
    assert_equal(await store.log(record.id), lines[-LOG_LINES:], "the last 100 lines are kept")
    await store.note([Note(record.hold, None, tuple(lines))])
    assert_equal(await store.log(record.id), lines[-LOG_LINES:], "also when one note brings more than that")


async def case_refused(store: Storage, clock: MovableClock) -> None:
    record, cancelled = await enqueue_and_claim(store), await enqueue_and_claim(store)
    ended = await report(store, cancelled.id, Cancelled())
    stale = msgspec.structs.replace(record.hold, stamp=new_stamp())
    nowhere = msgspec.structs.replace(record.hold, id=job().id)
    notes = [Note(hold, "1", ("x",)) for hold in (stale, cancelled.hold, nowhere, record.hold)]
    verdicts = await store.note(notes)
    assert_refused(verdicts[0], Refusal.TAKEN, "a note under another stamp")
    assert_refused(verdicts[1], Refusal.CANCELLED, "a note about a cancelled job")
    assert_refused(verdicts[2], Refusal.NOT_FOUND, "a note about an unknown job")
    assert_accepted(verdicts[3], "a note beside refused ones")
    assert_unchanged(ended, await read_job(store, cancelled.id), "a refused note")
    assert_equal(await store.log(cancelled.id), [], "a refused note leaves no line")
    assert_equal(await store.log(record.id), ["x"], "a refused note leaves no line")


async def case_log_of_nothing(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.log(job().id), [], "an unknown job has no lines")
    assert_equal(await store.note([]), [], "an empty list is answered by an empty list")


async def case_log_goes_with_its_job(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep(age=0).text())
    await store.note([Note(record.hold, None, ("x",))])
    await report(store, record.id, Succeeded())
    clock.advance(600)
    assert_equal(await store.prune(9), 1, "the job is pruned")
    assert_equal(await store.log(record.id), [], "its lines go with it")
