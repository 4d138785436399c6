"""renew: leases are prolonged for holds that stand, and nothing else."""

from __future__ import annotations

import msgspec

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, Died, Failed, LeaseLapsed, Report, Succeeded
from perdure.core.record import Hold
from perdure.core.retention import Retention
from perdure.storage.contract import Note, Refusal, Started, Storage

from ..tools import (
    LONG_ENOUGH,
    Hand,
    accepted,
    changed,
    claim,
    fault,
    ids,
    job,
    refused,
    running,
    same,
    say,
    seen,
    told,
    untouched,
)

FOR_EVER = Retention.keep().text()


async def case_prolongs_to_now_and_the_lease(store: Storage, clock: Hand) -> None:
    short, long = await running(store, lease=10 * SECOND), await running(store, lease=99 * SECOND)
    clock.advance(5)
    for verdict in await store.renew([short.hold, long.hold]):
        accepted(verdict, "the renewal of a hold that stands")
    now = await store.now()
    changed(short, await seen(store, short.id), "a renewal", leased_until=now + 10 * SECOND)
    changed(long, await seen(store, long.id), "a renewal", leased_until=now + 99 * SECOND)


async def case_as_long_as_asked(store: Storage, clock: Hand) -> None:
    short, long = await running(store, lease=10 * SECOND), await running(store, lease=99 * SECOND)
    clock.advance(5)
    for verdict in await store.renew([short.hold, long.hold], lease=30 * SECOND):
        accepted(verdict, "the renewal of a hold that stands")
    now = await store.now()
    longer = {"leased_until": now + 30 * SECOND, "lease": 30 * SECOND}
    changed(short, await seen(store, short.id), "a longer lease than the job's own is set on record", **longer)
    changed(long, await seen(store, long.id), "a shorter one holds for this time", leased_until=now + 30 * SECOND)
    clock.advance(1)
    await store.renew([long.hold, short.hold])
    changed(long, await seen(store, long.id), "the next renewal", leased_until=now + 100 * SECOND)
    longer["leased_until"] = now + 31 * SECOND
    changed(short, await seen(store, short.id), "the next renewal of the longer one", **longer)


async def case_a_longer_lease_is_not_cut(store: Storage, clock: Hand) -> None:
    """Upkeep cuts leases that reach further than they can, after the clock went back. This one may reach so far."""
    record = await running(store, lease=10 * SECOND)
    await store.renew([record.hold], lease=600 * SECOND)
    until = await store.now() + 600 * SECOND
    same(await store.lapsed(9, LONG_ENOUGH), [], "nothing has lapsed")
    same((await seen(store, record.id)).leased_until, until, "upkeep leaves the lease as it is")
    clock.advance(599.999999)
    same(await store.lapsed(9, LONG_ENOUGH), [], "it lasts as long as it was asked for")
    clock.advance(0.000001)
    same(ids(await store.lapsed(9, LONG_ENOUGH)), [record.id], "and is over then")
    await told(store, record.id, LeaseLapsed())
    (again,) = await claim(store)
    same(again.leased_until, await store.now() + 600 * SECOND, "a later attempt has the lease that is on record")


async def case_a_short_lease_is_over_soon(store: Storage, clock: Hand) -> None:
    record = await running(store, lease=60 * SECOND)
    await store.renew([record.hold], [Started(record.hold, 7)], lease=2 * SECOND)
    clock.advance(1.999999)
    same(await store.lapsed(9, LONG_ENOUGH), [], "it lasts as long as it was asked for")
    clock.advance(0.000001)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    same((lapsed.id, lapsed.started_at), (record.id, 7), "and is over then, though the job's own is longer")
    same(
        await store.lapsed(9, 20 * SECOND - 1), [], "who reaps must have reached the store for a third of the job's own"
    )
    await told(store, record.id, LeaseLapsed())
    same(ids(await claim(store)), [record.id], "then another may take it")


async def case_a_check_prolongs_nothing(store: Storage, clock: Hand) -> None:
    record = await running(store, lease=10 * SECOND)
    clock.advance(5)
    accepted((await store.check([record.hold]))[0], "the check of a hold that stands")
    untouched(record, await seen(store, record.id), "a check")


async def case_a_lease_that_is_over_but_not_reaped(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(3600)
    accepted((await store.renew([record.hold]))[0], "the renewal of a lease that nobody has reaped")
    same(await store.lapsed(9, LONG_ENOUGH), [], "it is not lapsed any more")


async def case_refusals(store: Storage, clock: Hand) -> None:
    cancelled, deleted, done, failed = [await running(store) for _ in range(4)]
    await told(store, cancelled.id, Cancelled())
    await told(store, deleted.id, Deleted())
    await told(store, done.id, Succeeded())
    await told(store, failed.id, Failed(fault(), delay=SECOND))
    before = await store.get([cancelled.id, deleted.id, done.id, failed.id])
    holds = [cancelled.hold, deleted.hold, done.hold, failed.hold, Hold(job().id, 1, 1)]
    verdicts = await store.renew(holds)
    same(await store.check(holds), verdicts, "a check answers as a renewal would")
    refused(verdicts[0], Refusal.CANCELLED, "the renewal of a cancelled job")
    refused(verdicts[1], Refusal.NOT_FOUND, "the renewal of a deleted job")
    refused(verdicts[2], Refusal.COMPLETED, "the renewal of an ended job")
    refused(verdicts[3], Refusal.TAKEN, "the renewal of a job that waits again")
    refused(verdicts[4], Refusal.NOT_FOUND, "the renewal of an unknown job")
    same(await store.get([cancelled.id, deleted.id, done.id, failed.id]), before, "refused renewals change nothing")


async def case_a_hold_of_another(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(5)
    stale = [
        msgspec.structs.replace(record.hold, stamp=new_stamp()),
        msgspec.structs.replace(record.hold, attempt=record.attempt + 1),
    ]
    for verdict in await store.renew(stale):
        refused(verdict, Refusal.TAKEN, "a renewal under another stamp or attempt")
    untouched(record, await seen(store, record.id), "a stale renewal")


async def case_reaped_and_taken(store: Storage, clock: Hand) -> None:
    first = await running(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await told(store, lapsed.id, LeaseLapsed())
    refused((await store.renew([first.hold]))[0], Refusal.TAKEN, "the renewal of a job that was reaped")
    (second,) = await claim(store, 1, "w2")
    verdicts = await store.renew([second.hold, first.hold])
    accepted(verdicts[0], "the new holder's renewal")
    refused(verdicts[1], Refusal.TAKEN, "the old holder's renewal")


async def case_taken_and_ended_by_another(store: Storage, clock: Hand) -> None:
    """Who lost a job to another worker is told so, whatever that one made of it."""
    ends: list[Report] = [Succeeded(), Succeeded(), Died("x"), Cancelled(), Deleted()]
    rules = [FOR_EVER, Retention.delete().text(), FOR_EVER, FOR_EVER, FOR_EVER]
    for said, rule in zip(ends, rules, strict=True):
        first = await running(store, retention=rule)
        clock.advance(60)
        await told(store, first.id, LeaseLapsed())
        (second,) = await claim(store, 1, "w2")
        same((second.id, second.attempt), (first.id, 2), "another worker has it")
        await told(store, first.id, said)
        what = f"told by a worker that lost its job before: {said}"
        for verdict in (*await store.renew([first.hold]), *await store.check([first.hold])):
            refused(verdict, Refusal.TAKEN, what)
        refused(await say(store, first, Succeeded("1")), Refusal.TAKEN, what)
        refused((await store.note([Note(first.hold, "1")]))[0], Refusal.TAKEN, what)


async def case_reaped_for_good(store: Storage, clock: Hand) -> None:
    record = await running(store, max_attempts=1)
    clock.advance(60)
    await told(store, record.id, LeaseLapsed(fault(), charged=True))
    same((await seen(store, record.id)).state, State.DEAD, "upkeep made a dead letter of it")
    refused((await store.renew([record.hold]))[0], Refusal.TAKEN, "the renewal of a job that was reaped for good")


async def case_notes_the_started(store: Storage, clock: Hand) -> None:
    record, lost = await running(store), await running(store)
    stale = msgspec.structs.replace(lost.hold, stamp=new_stamp())
    now = await store.now()
    await store.renew([], [Started(record.hold, now - 2), Started(stale, now - 2)])
    changed(record, await seen(store, record.id), "noting a start with a renewal", started_at=now - 2)
    untouched(lost, await seen(store, lost.id), "a start noted by a stale holder")


async def case_after_the_clock_went_back(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(-600)
    accepted((await store.renew([record.hold]))[0], "a renewal after the clock went back")
    after = await seen(store, record.id)
    same(after.leased_until, await store.now() + record.lease, "the store's clock decides, also when it went back")


async def case_nothing_to_renew(store: Storage, clock: Hand) -> None:
    same(await store.renew([]), [], "an empty list is answered by an empty list")
