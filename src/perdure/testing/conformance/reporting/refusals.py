"""apply: the store refuses reports of workers that lost their hold and decisions about old rows, and changes nothing."""

from __future__ import annotations

import msgspec

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import (
    Cancelled,
    Deleted,
    Failed,
    HandedBack,
    HoldGuard,
    LeaseLapsed,
    RunNow,
    Snoozed,
    Stopped,
    Succeeded,
    decide,
)
from perdure.core.record import Record
from perdure.storage.contract import Note, Refusal, Storage

from ..tools import (
    FORGET,
    LONG_ENOUGH,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_unchanged,
    claim,
    enqueue_and_claim,
    fault,
    job,
    read_job,
    report,
)


async def case_same_attempt_other_stamp(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    zombie = msgspec.structs.replace(record, stamp=new_stamp())
    assert_refused(
        await apply_report(store, zombie, Succeeded("2")), Refusal.TAKEN, "the same attempt under another stamp"
    )
    assert_unchanged(record, await read_job(store, record.id), "the report of a worker that lost its job")
    assert_accepted(await apply_report(store, record, Succeeded("1")), "the holder's report")


async def case_other_attempt_same_stamp(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    for attempt in (record.attempt - 1, record.attempt + 1):
        zombie = msgspec.structs.replace(record, attempt=attempt)
        assert_refused(
            await apply_report(store, zombie, Succeeded()), Refusal.TAKEN, "another attempt under the same stamp"
        )
    assert_unchanged(record, await read_job(store, record.id), "a report with another attempt")


async def case_claimed_by_the_next_holder(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    second = await _reap_and_claim_again(store, clock)
    assert_refused(
        await apply_report(store, first, Succeeded("1")),
        Refusal.TAKEN,
        "the report of a holder that lost its job to another worker",
    )
    assert_unchanged(second, await read_job(store, first.id), "a stale holder's report")
    assert_accepted(await apply_report(store, second, Succeeded("2")), "the new holder's report")
    assert_refused(
        await apply_report(store, first, Succeeded("1")), Refusal.TAKEN, "the same report after the job's end"
    )
    assert_equal((await read_job(store, first.id)).result, "2", "one success per job")


async def case_reaped(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await report(store, lapsed.id, LeaseLapsed())
    for reported in (Succeeded(), Failed(fault()), Snoozed(delay=1), HandedBack(), Stopped()):
        assert_refused(
            await apply_report(store, record, reported), Refusal.TAKEN, f"{type(reported).__name__} after the reaper"
        )


async def case_ended_from_outside(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Cancelled("enough"))
    before = await read_job(store, record.id)
    for reported in (Succeeded("1"), Failed(fault()), Snoozed(delay=1), HandedBack()):
        assert_refused(
            await apply_report(store, record, reported),
            Refusal.CANCELLED,
            f"{type(reported).__name__} of a cancelled job",
        )
    assert_unchanged(before, await read_job(store, record.id), "a completion after the cancel")


async def case_deleted(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Deleted())
    assert_refused(
        await apply_report(store, record, Succeeded()), Refusal.NOT_FOUND, "the end of a job that was deleted"
    )


async def case_hidden_by_another_hold(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store, retention=FORGET)
    second = await _reap_and_claim_again(store, clock)
    await apply_report(store, second, Succeeded())
    assert_refused(
        await apply_report(store, first, Succeeded()),
        Refusal.TAKEN,
        "a stale holder of a job that another worker claimed and ended",
    )


async def case_never_there(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    nowhere = msgspec.structs.replace(record, id=job().id)
    assert_refused(
        await apply_report(store, nowhere, Succeeded()), Refusal.NOT_FOUND, "a holder's report about an unknown id"
    )
    assert_refused(await apply_report(store, nowhere, Cancelled()), Refusal.NOT_FOUND, "any report about an unknown id")


async def case_stopped_is_refused_while_it_runs(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    assert_refused(
        await apply_report(store, record, Stopped()),
        Refusal.TAKEN,
        "Stopped about a job that was not ended from outside",
    )
    assert_unchanged(record, await read_job(store, record.id), "a Stopped out of place")


async def case_an_end_does_not_count_as_ended_hold(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Cancelled())
    decided = decide(record, Succeeded())
    assert_equal(isinstance(decided.guard, HoldGuard), True, "a holder's change is guarded by its hold")
    assert_refused(
        (await store.apply([decided]))[0],
        Refusal.CANCELLED,
        "only Stopped is accepted for an ended job that keeps its hold",
    )


async def case_any_move_makes_a_view_stale(store: Storage, clock: MovableClock) -> None:
    new = job(delay=SECOND)
    await store.enqueue([new])
    views = [await read_job(store, new.id)]
    clock.advance(1)
    await store.promote(9)
    views.append(await read_job(store, new.id))
    (record,) = await claim(store)
    views.append(record)
    await report(store, new.id, Failed(fault(), delay=0))
    views.append(await read_job(store, new.id))
    await claim(store)
    for view in views:
        assert_refused(
            await apply_report(store, view, Cancelled()), Refusal.STALE, f"a cancel decided on version {view.version}"
        )
    assert_accepted(
        await apply_report(store, await read_job(store, new.id), Cancelled()),
        "a cancel decided on the current row",
    )


async def case_same_state_twice_is_stale(store: Storage, clock: MovableClock) -> None:
    new = job(delay=SECOND)
    await store.enqueue([new])
    view = await read_job(store, new.id)
    await report(store, new.id, RunNow())
    (record,) = await claim(store)
    await report(store, record.id, Snoozed(delay=SECOND))
    assert_refused(
        await apply_report(store, view, RunNow()),
        Refusal.STALE,
        "the state is the same as before, but the row has changed",
    )


async def case_of_two_admins_one_wins(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    view = await read_job(store, new.id)
    assert_accepted(await apply_report(store, view, Cancelled("first")), "the first report")
    assert_refused(
        await apply_report(store, view, Deleted()), Refusal.STALE, "the second report about the same version"
    )


async def case_small_signs_leave_the_version(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(5)
    await store.renew([record.hold])
    await store.note([Note(record.hold, "1", ("line",))])
    assert_equal((await read_job(store, record.id)).version, record.version, "renew and note leave the version")
    assert_accepted(await apply_report(store, record, Cancelled()), "a cancel decided before a renewal")


async def case_lapse_is_checked_again(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(60)
    (view,) = await store.lapsed(9, LONG_ENOUGH)
    await store.renew([record.hold])
    assert_refused(
        await apply_report(store, view, LeaseLapsed()), Refusal.STALE, "reaping a job that was renewed meanwhile"
    )
    assert_accepted(await apply_report(store, record, Succeeded()), "the end of the job that was renewed in time")


async def case_only_one_reaper(store: Storage, clock: MovableClock) -> None:
    await enqueue_and_claim(store)
    clock.advance(60)
    (view,) = await store.lapsed(9, LONG_ENOUGH)
    assert_accepted(await apply_report(store, view, LeaseLapsed(charged=True)), "the first reaper's report")
    assert_refused(
        await apply_report(store, view, LeaseLapsed(charged=True)), Refusal.STALE, "the second reaper's report"
    )
    assert_equal((await read_job(store, view.id)).losses, 1, "a loss is charged once")


async def _reap_and_claim_again(store: Storage, clock: MovableClock) -> Record:
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await report(store, lapsed.id, LeaseLapsed())
    return (await claim(store, 1, "w2"))[0]
