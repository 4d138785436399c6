"""lapsed: jobs whose lease is over, for a worker that has been in contact with the store for long enough."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, LeaseLapsed, Succeeded
from perdure.storage.contract import Storage

from ..tools import (
    LONG_ENOUGH,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_true,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    report,
)


async def case_when_the_lease_is_over(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, lease=30 * SECOND)
    clock.advance(29.999999)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "a microsecond too early")
    clock.advance(0.000001)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [record], "from leased_until on; the current row")


async def case_when_the_next_lease_ends(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.next_lapse(), None, "nothing is held")
    first = await enqueue_and_claim(store, lease=30 * SECOND)
    limited = job(lease=20 * SECOND, limits='[["k",1,null,null]]')
    await store.enqueue([limited])
    assert_equal(await store.next_lapse(), 30 * SECOND, "until the only lease ends")
    (second,) = await claim(store, 9, limited=True)
    assert_equal(await store.next_lapse(), 20 * SECOND, "until the first of two ends")
    clock.advance(5)
    assert_equal(await store.next_lapse(), 15 * SECOND, "time passes")
    assert_accepted(await apply_report(store, second, Succeeded()), "a success")
    assert_true(
        (await store.next_lapse() or 0) in (15 * SECOND, 25 * SECOND), "never later than the first end of a lease"
    )
    clock.advance(25)
    assert_true((await store.next_lapse() or 0) <= 0, "one is over")
    assert_equal(ids(await store.lapsed(9, LONG_ENOUGH)), [first.id], "it is listed")
    await report(store, first.id, Cancelled())
    assert_true((await store.next_lapse() or 0) <= 0, "an ended job keeps its hold until it is released")
    assert_accepted(await apply_report(store, await read_job(store, first.id), LeaseLapsed()), "its end")
    await store.lapsed(9, LONG_ENOUGH)
    assert_equal(await store.next_lapse(), None, "nothing is held any more")


async def case_the_longest_over_first(store: Storage, clock: MovableClock) -> None:
    records = [await enqueue_and_claim(store, lease=lease * SECOND) for lease in (30, 10, 20)]
    clock.advance(60)
    wanted = [records[1].id, records[2].id, records[0].id]
    assert_equal(ids(await store.lapsed(9, LONG_ENOUGH)), wanted, "the longest over first")
    assert_equal(ids(await store.lapsed(2, LONG_ENOUGH)), wanted[:2], "at most `limit`")


async def case_contact_of_a_third_of_the_lease(store: Storage, clock: MovableClock) -> None:
    short, long = await enqueue_and_claim(store, lease=30 * SECOND), await enqueue_and_claim(store, lease=300 * SECOND)
    clock.advance(3600)
    assert_equal(await store.lapsed(9, 0), [], "a reaper without contact reaps nothing")
    assert_equal(await store.lapsed(9, 10 * SECOND - 1), [], "contact of less than a third of the lease")
    assert_equal(ids(await store.lapsed(9, 10 * SECOND)), [short.id], "contact of a third of the short lease")
    assert_equal(ids(await store.lapsed(9, 100 * SECOND)), [short.id, long.id], "contact of a third of both leases")


async def case_contact_does_not_hide_others(store: Storage, clock: MovableClock) -> None:
    await enqueue_and_claim(store, lease=300 * SECOND)
    clock.advance(400)
    short = await enqueue_and_claim(store, lease=30 * SECOND)
    clock.advance(60)
    found = await store.lapsed(1, 10 * SECOND)
    assert_equal(ids(found), [short.id], "leases that may not be reaped yet do not use up the limit")


async def case_ended_ones_with_a_hold(store: Storage, clock: MovableClock) -> None:
    cancelled, deleted, done = [await enqueue_and_claim(store) for _ in range(3)]
    await report(store, cancelled.id, Cancelled())
    await report(store, deleted.id, Deleted())
    await report(store, done.id, Succeeded())
    clock.advance(60)
    found = ids(await store.lapsed(9, LONG_ENOUGH))
    assert_equal(
        sorted(found), sorted([cancelled.id, deleted.id]), "ended and hidden jobs that still have a hold are listed"
    )


async def case_waiting_jobs_have_no_lease(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(), job(delay=SECOND), job(waits=1)])
    clock.advance(3600)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "only held jobs lapse")


async def case_leases_are_cut_when_the_clock_went_back(store: Storage, clock: MovableClock) -> None:
    record, cancelled = (
        await enqueue_and_claim(store, lease=30 * SECOND),
        await enqueue_and_claim(store, lease=30 * SECOND),
    )
    await report(store, cancelled.id, Cancelled())
    clock.advance(-3600)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "nothing has lapsed")
    after = await read_job(store, record.id)
    assert_equal(
        after.leased_until, await store.now() + 30 * SECOND, "a lease that ends too late is cut to now + lease"
    )
    assert_equal(after.version, record.version, "the cut leaves the version")
    assert_accepted((await store.renew([record.hold]))[0], "the holder is not disturbed")
    clock.advance(30)
    found = ids(await store.lapsed(9, LONG_ENOUGH))
    assert_equal(sorted(found), sorted([record.id, cancelled.id]), "reaped a lease later, not an hour later")


async def case_leases_are_cut_whatever_the_contact(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, lease=300 * SECOND)
    clock.advance(-3600)
    await store.lapsed(0, 0)
    after = await read_job(store, record.id)
    assert_equal(after.leased_until, await store.now() + 300 * SECOND, "leases are cut first, whatever may be reaped")


async def case_reaped_jobs_are_claimed_again(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    assert_accepted(await apply_report(store, lapsed, LeaseLapsed()), "the reaper's report")
    assert_equal((await read_job(store, record.id)).state, State.READY, "a reaped job is ready")
    (again,) = await claim(store, 1, "w2")
    assert_equal((again.id, again.attempt, again.leased_by), (record.id, 2, "w2"), "the next attempt")
