"""renew: extend the leases of valid holds, and change nothing else."""

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
    MovableClock,
    apply_report,
    assert_accepted,
    assert_changed_only,
    assert_equal,
    assert_refused,
    assert_unchanged,
    claim,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
)

FOR_EVER = Retention.keep().text()


async def case_prolongs_to_now_and_the_lease(store: Storage, clock: MovableClock) -> None:
    short, long = await enqueue_and_claim(store, lease=10 * SECOND), await enqueue_and_claim(store, lease=99 * SECOND)
    clock.advance(5)
    for verdict in await store.renew([short.hold, long.hold]):
        assert_accepted(verdict, "the renewal of a valid hold")
    now = await store.now()
    assert_changed_only(short, await read_job(store, short.id), "a renewal", leased_until=now + 10 * SECOND)
    assert_changed_only(long, await read_job(store, long.id), "a renewal", leased_until=now + 99 * SECOND)


async def case_as_long_as_asked(store: Storage, clock: MovableClock) -> None:
    short, long = await enqueue_and_claim(store, lease=10 * SECOND), await enqueue_and_claim(store, lease=99 * SECOND)
    clock.advance(5)
    for verdict in await store.renew([short.hold, long.hold], lease=30 * SECOND):
        assert_accepted(verdict, "the renewal of a valid hold")
    now = await store.now()
    longer = {"leased_until": now + 30 * SECOND, "lease": 30 * SECOND}
    assert_changed_only(
        short, await read_job(store, short.id), "a longer lease than the job's own is set on record", **longer
    )
    assert_changed_only(
        long, await read_job(store, long.id), "a shorter one holds for this time", leased_until=now + 30 * SECOND
    )
    clock.advance(1)
    await store.renew([long.hold, short.hold])
    assert_changed_only(long, await read_job(store, long.id), "the next renewal", leased_until=now + 100 * SECOND)
    longer["leased_until"] = now + 31 * SECOND
    assert_changed_only(short, await read_job(store, short.id), "the next renewal of the longer one", **longer)


async def case_a_longer_lease_is_not_cut(store: Storage, clock: MovableClock) -> None:
    """After the clock went back, upkeep shortens leases that are too long. This lease is not too long."""
    record = await enqueue_and_claim(store, lease=10 * SECOND)
    await store.renew([record.hold], lease=600 * SECOND)
    until = await store.now() + 600 * SECOND
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "nothing has lapsed")
    assert_equal((await read_job(store, record.id)).leased_until, until, "upkeep leaves the lease as it is")
    clock.advance(599.999999)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "it lasts as long as it was asked for")
    clock.advance(0.000001)
    assert_equal(ids(await store.lapsed(9, LONG_ENOUGH)), [record.id], "and is over then")
    await report(store, record.id, LeaseLapsed())
    (again,) = await claim(store)
    assert_equal(
        again.leased_until, await store.now() + 600 * SECOND, "a later attempt has the lease that is on record"
    )


async def case_a_short_lease_is_over_soon(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, lease=60 * SECOND)
    await store.renew([record.hold], [Started(record.hold, 7)], lease=2 * SECOND)
    clock.advance(1.999999)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "it lasts as long as it was asked for")
    clock.advance(0.000001)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    assert_equal((lapsed.id, lapsed.started_at), (record.id, 7), "and is over then, though the job's own is longer")
    assert_equal(
        await store.lapsed(9, 20 * SECOND - 1), [], "who reaps must have reached the store for a third of the job's own"
    )
    await report(store, record.id, LeaseLapsed())
    assert_equal(ids(await claim(store)), [record.id], "then another may take it")


async def case_a_check_prolongs_nothing(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, lease=10 * SECOND)
    clock.advance(5)
    assert_accepted((await store.check([record.hold]))[0], "the check of a valid hold")
    assert_unchanged(record, await read_job(store, record.id), "a check")


async def case_a_lease_that_is_over_but_not_reaped(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(3600)
    assert_accepted((await store.renew([record.hold]))[0], "the renewal of a lease that was not reaped")
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "it is not lapsed any more")


async def case_refusals(store: Storage, clock: MovableClock) -> None:
    cancelled, deleted, done, failed = [await enqueue_and_claim(store) for _ in range(4)]
    await report(store, cancelled.id, Cancelled())
    await report(store, deleted.id, Deleted())
    await report(store, done.id, Succeeded())
    await report(store, failed.id, Failed(fault(), delay=SECOND))
    before = await store.get([cancelled.id, deleted.id, done.id, failed.id])
    holds = [cancelled.hold, deleted.hold, done.hold, failed.hold, Hold(job().id, 1, 1)]
    verdicts = await store.renew(holds)
    assert_equal(await store.check(holds), verdicts, "a check answers as a renewal would")
    assert_refused(verdicts[0], Refusal.CANCELLED, "the renewal of a cancelled job")
    assert_refused(verdicts[1], Refusal.NOT_FOUND, "the renewal of a deleted job")
    assert_refused(verdicts[2], Refusal.COMPLETED, "the renewal of an ended job")
    assert_refused(verdicts[3], Refusal.TAKEN, "the renewal of a job that waits again")
    assert_refused(verdicts[4], Refusal.NOT_FOUND, "the renewal of an unknown job")
    assert_equal(
        await store.get([cancelled.id, deleted.id, done.id, failed.id]), before, "refused renewals change nothing"
    )


async def case_a_hold_of_another(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(5)
    stale = [
        msgspec.structs.replace(record.hold, stamp=new_stamp()),
        msgspec.structs.replace(record.hold, attempt=record.attempt + 1),
    ]
    for verdict in await store.renew(stale):
        assert_refused(verdict, Refusal.TAKEN, "a renewal under another stamp or attempt")
    assert_unchanged(record, await read_job(store, record.id), "a stale renewal")


async def case_reaped_and_claimed_again(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await report(store, lapsed.id, LeaseLapsed())
    assert_refused((await store.renew([first.hold]))[0], Refusal.TAKEN, "the renewal of a job that was reaped")
    (second,) = await claim(store, 1, "w2")
    verdicts = await store.renew([second.hold, first.hold])
    assert_accepted(verdicts[0], "the new holder's renewal")
    assert_refused(verdicts[1], Refusal.TAKEN, "the old holder's renewal")


async def case_claimed_and_ended_by_another(store: Storage, clock: MovableClock) -> None:
    """A worker that lost a job to another one learns it, whatever the other one did with the job."""
    ends: list[Report] = [Succeeded(), Succeeded(), Died("x"), Cancelled(), Deleted()]
    rules = [FOR_EVER, Retention.delete().text(), FOR_EVER, FOR_EVER, FOR_EVER]
    for reported, rule in zip(ends, rules, strict=True):
        first = await enqueue_and_claim(store, retention=rule)
        clock.advance(60)
        await report(store, first.id, LeaseLapsed())
        (second,) = await claim(store, 1, "w2")
        assert_equal((second.id, second.attempt), (first.id, 2), "another worker has it")
        await report(store, first.id, reported)
        what = f"reported by a worker that lost its job before: {reported}"
        for verdict in (*await store.renew([first.hold]), *await store.check([first.hold])):
            assert_refused(verdict, Refusal.TAKEN, what)
        assert_refused(await apply_report(store, first, Succeeded("1")), Refusal.TAKEN, what)
        assert_refused((await store.note([Note(first.hold, "1")]))[0], Refusal.TAKEN, what)


async def case_reaped_for_good(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, max_attempts=1)
    clock.advance(60)
    await report(store, record.id, LeaseLapsed(fault(), charged=True))
    assert_equal((await read_job(store, record.id)).state, State.DEAD, "upkeep made a dead letter of it")
    assert_refused(
        (await store.renew([record.hold]))[0], Refusal.TAKEN, "the renewal of a job that was reaped for good"
    )


async def case_notes_the_started(store: Storage, clock: MovableClock) -> None:
    record, lost = await enqueue_and_claim(store), await enqueue_and_claim(store)
    stale = msgspec.structs.replace(lost.hold, stamp=new_stamp())
    now = await store.now()
    await store.renew([], [Started(record.hold, now - 2), Started(stale, now - 2)])
    assert_changed_only(record, await read_job(store, record.id), "noting a start with a renewal", started_at=now - 2)
    assert_unchanged(lost, await read_job(store, lost.id), "a start noted by a stale holder")


async def case_after_the_clock_went_back(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(-600)
    assert_accepted((await store.renew([record.hold]))[0], "a renewal after the clock went back")
    after = await read_job(store, record.id)
    assert_equal(
        after.leased_until, await store.now() + record.lease, "the store's clock decides, also when it went back"
    )


async def case_nothing_to_renew(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.renew([]), [], "an empty list is answered by an empty list")
