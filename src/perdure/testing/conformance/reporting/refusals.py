"""apply: words of those who no longer hold, and of those who look at an old row, are refused and change nothing."""

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
    Hand,
    accepted,
    claim,
    fault,
    job,
    refused,
    running,
    same,
    say,
    seen,
    told,
    untouched,
)


async def case_same_attempt_other_stamp(store: Storage, clock: Hand) -> None:
    record = await running(store)
    zombie = msgspec.structs.replace(record, stamp=new_stamp())
    refused(await say(store, zombie, Succeeded("2")), Refusal.TAKEN, "the same attempt under another stamp")
    untouched(record, await seen(store, record.id), "a zombie's word")
    accepted(await say(store, record, Succeeded("1")), "the true holder's word")


async def case_other_attempt_same_stamp(store: Storage, clock: Hand) -> None:
    record = await running(store)
    for attempt in (record.attempt - 1, record.attempt + 1):
        zombie = msgspec.structs.replace(record, attempt=attempt)
        refused(await say(store, zombie, Succeeded()), Refusal.TAKEN, "another attempt under the same stamp")
    untouched(record, await seen(store, record.id), "a word with another attempt")


async def case_taken_by_the_next_holder(store: Storage, clock: Hand) -> None:
    first = await running(store)
    second = await _reaped_and_taken(store, clock)
    refused(await say(store, first, Succeeded("1")), Refusal.TAKEN, "the word of a holder whose job another took")
    untouched(second, await seen(store, first.id), "a stale holder's word")
    accepted(await say(store, second, Succeeded("2")), "the new holder's word")
    refused(await say(store, first, Succeeded("1")), Refusal.TAKEN, "the same word after the job's end")
    same((await seen(store, first.id)).result, "2", "one success per job")


async def case_given_back_by_the_reaper(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await told(store, lapsed.id, LeaseLapsed())
    for said in (Succeeded(), Failed(fault()), Snoozed(delay=1), HandedBack(), Stopped()):
        refused(await say(store, record, said), Refusal.TAKEN, f"{type(said).__name__} after the reaper")


async def case_ended_from_outside(store: Storage, clock: Hand) -> None:
    record = await running(store)
    await told(store, record.id, Cancelled("enough"))
    before = await seen(store, record.id)
    for said in (Succeeded("1"), Failed(fault()), Snoozed(delay=1), HandedBack()):
        refused(await say(store, record, said), Refusal.CANCELLED, f"{type(said).__name__} of a cancelled job")
    untouched(before, await seen(store, record.id), "a completion after the cancel")


async def case_deleted(store: Storage, clock: Hand) -> None:
    record = await running(store)
    await told(store, record.id, Deleted())
    refused(await say(store, record, Succeeded()), Refusal.NOT_FOUND, "the end of a job that was deleted")


async def case_hidden_by_another_hold(store: Storage, clock: Hand) -> None:
    first = await running(store, retention=FORGET)
    second = await _reaped_and_taken(store, clock)
    await say(store, second, Succeeded())
    refused(await say(store, first, Succeeded()), Refusal.TAKEN, "a stale holder of a job that another took and ended")


async def case_never_there(store: Storage, clock: Hand) -> None:
    record = await running(store)
    nowhere = msgspec.structs.replace(record, id=job().id)
    refused(await say(store, nowhere, Succeeded()), Refusal.NOT_FOUND, "a holder's word about an unknown id")
    refused(await say(store, nowhere, Cancelled()), Refusal.NOT_FOUND, "anybody's word about an unknown id")


async def case_stopped_is_refused_while_it_runs(store: Storage, clock: Hand) -> None:
    record = await running(store)
    refused(await say(store, record, Stopped()), Refusal.TAKEN, "Stopped about a job that was not ended from outside")
    untouched(record, await seen(store, record.id), "a Stopped out of place")


async def case_an_end_does_not_count_as_ended_hold(store: Storage, clock: Hand) -> None:
    record = await running(store)
    await told(store, record.id, Cancelled())
    word = decide(record, Succeeded())
    same(isinstance(word.guard, HoldGuard), True, "a holder speaks under its hold")
    refused(
        (await store.apply([word]))[0], Refusal.CANCELLED, "only Stopped speaks for an ended job that keeps its hold"
    )


async def case_any_move_makes_a_view_stale(store: Storage, clock: Hand) -> None:
    new = job(delay=SECOND)
    await store.enqueue([new])
    views = [await seen(store, new.id)]
    clock.advance(1)
    await store.promote(9)
    views.append(await seen(store, new.id))
    (record,) = await claim(store)
    views.append(record)
    await told(store, new.id, Failed(fault(), delay=0))
    views.append(await seen(store, new.id))
    await claim(store)
    for view in views:
        refused(await say(store, view, Cancelled()), Refusal.STALE, f"a cancel decided on version {view.version}")
    accepted(await say(store, await seen(store, new.id), Cancelled()), "a cancel decided on the row as it stands")


async def case_same_state_twice_is_stale(store: Storage, clock: Hand) -> None:
    new = job(delay=SECOND)
    await store.enqueue([new])
    view = await seen(store, new.id)
    await told(store, new.id, RunNow())
    (record,) = await claim(store)
    await told(store, record.id, Snoozed(delay=SECOND))
    refused(await say(store, view, RunNow()), Refusal.STALE, "a state that looks the same as before has moved")


async def case_of_two_admins_one_wins(store: Storage, clock: Hand) -> None:
    new = job()
    await store.enqueue([new])
    view = await seen(store, new.id)
    accepted(await say(store, view, Cancelled("first")), "the first word")
    refused(await say(store, view, Deleted()), Refusal.STALE, "the second word about the same view")


async def case_small_signs_leave_the_version(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(5)
    await store.renew([record.hold])
    await store.note([Note(record.hold, "1", ("line",))])
    same((await seen(store, record.id)).version, record.version, "renew and note leave the version")
    accepted(await say(store, record, Cancelled()), "a cancel decided before a renewal")


async def case_lapse_is_looked_at_again(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(60)
    (view,) = await store.lapsed(9, LONG_ENOUGH)
    await store.renew([record.hold])
    refused(await say(store, view, LeaseLapsed()), Refusal.STALE, "reaping a job that was renewed meanwhile")
    accepted(await say(store, record, Succeeded()), "the end of the job that was renewed in time")


async def case_only_one_reaper(store: Storage, clock: Hand) -> None:
    await running(store)
    clock.advance(60)
    (view,) = await store.lapsed(9, LONG_ENOUGH)
    accepted(await say(store, view, LeaseLapsed(charged=True)), "the first reaper's word")
    refused(await say(store, view, LeaseLapsed(charged=True)), Refusal.STALE, "the second reaper's word")
    same((await seen(store, view.id)).losses, 1, "a loss is charged once")


async def _reaped_and_taken(store: Storage, clock: Hand) -> Record:
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await told(store, lapsed.id, LeaseLapsed())
    return (await claim(store, 1, "w2"))[0]
