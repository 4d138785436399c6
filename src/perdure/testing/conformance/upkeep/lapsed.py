"""lapsed: jobs whose lease is over, for a reaper that has been in contact long enough."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, LeaseLapsed, Succeeded
from perdure.storage.contract import Storage

from ..tools import LONG_ENOUGH, Hand, accepted, claim, ids, job, running, same, say, seen, told, true


async def case_when_the_lease_is_over(store: Storage, clock: Hand) -> None:
    record = await running(store, lease=30 * SECOND)
    clock.advance(29.999999)
    same(await store.lapsed(9, LONG_ENOUGH), [], "a microsecond too early")
    clock.advance(0.000001)
    same(await store.lapsed(9, LONG_ENOUGH), [record], "from leased_until on; the row as it stands")


async def case_when_the_next_lease_ends(store: Storage, clock: Hand) -> None:
    same(await store.next_lapse(), None, "nothing is held")
    first = await running(store, lease=30 * SECOND)
    limited = job(lease=20 * SECOND, limits='[["k",1,null,null]]')
    await store.enqueue([limited])
    same(await store.next_lapse(), 30 * SECOND, "until the only lease ends")
    (second,) = await claim(store, 9, limited=True)
    same(await store.next_lapse(), 20 * SECOND, "until the first of two ends")
    clock.advance(5)
    same(await store.next_lapse(), 15 * SECOND, "time goes by")
    accepted(await say(store, second, Succeeded()), "a success")
    true((await store.next_lapse() or 0) in (15 * SECOND, 25 * SECOND), "never later than the first end of a lease")
    clock.advance(25)
    true((await store.next_lapse() or 0) <= 0, "one is over")
    same(ids(await store.lapsed(9, LONG_ENOUGH)), [first.id], "it is told of")
    await told(store, first.id, Cancelled())
    true((await store.next_lapse() or 0) <= 0, "an ended job has its hold until somebody takes it away")
    accepted(await say(store, await seen(store, first.id), LeaseLapsed()), "its end")
    await store.lapsed(9, LONG_ENOUGH)
    same(await store.next_lapse(), None, "nothing is held any more")


async def case_the_longest_over_first(store: Storage, clock: Hand) -> None:
    records = [await running(store, lease=lease * SECOND) for lease in (30, 10, 20)]
    clock.advance(60)
    wanted = [records[1].id, records[2].id, records[0].id]
    same(ids(await store.lapsed(9, LONG_ENOUGH)), wanted, "the longest over first")
    same(ids(await store.lapsed(2, LONG_ENOUGH)), wanted[:2], "at most `limit`")


async def case_contact_of_a_third_of_the_lease(store: Storage, clock: Hand) -> None:
    short, long = await running(store, lease=30 * SECOND), await running(store, lease=300 * SECOND)
    clock.advance(3600)
    same(await store.lapsed(9, 0), [], "a reaper without contact reaps nothing")
    same(await store.lapsed(9, 10 * SECOND - 1), [], "contact of less than a third of the lease")
    same(ids(await store.lapsed(9, 10 * SECOND)), [short.id], "contact of a third of the short lease")
    same(ids(await store.lapsed(9, 100 * SECOND)), [short.id, long.id], "contact of a third of both leases")


async def case_contact_does_not_hide_others(store: Storage, clock: Hand) -> None:
    await running(store, lease=300 * SECOND)
    clock.advance(400)
    short = await running(store, lease=30 * SECOND)
    clock.advance(60)
    found = await store.lapsed(1, 10 * SECOND)
    same(ids(found), [short.id], "leases that may not be reaped yet do not use up the limit")


async def case_ended_ones_with_a_hold(store: Storage, clock: Hand) -> None:
    cancelled, deleted, done = [await running(store) for _ in range(3)]
    await told(store, cancelled.id, Cancelled())
    await told(store, deleted.id, Deleted())
    await told(store, done.id, Succeeded())
    clock.advance(60)
    found = ids(await store.lapsed(9, LONG_ENOUGH))
    same(sorted(found), sorted([cancelled.id, deleted.id]), "ended and hidden jobs that still carry a hold are told")


async def case_waiting_jobs_have_no_lease(store: Storage, clock: Hand) -> None:
    await store.enqueue([job(), job(delay=SECOND), job(waits=1)])
    clock.advance(3600)
    same(await store.lapsed(9, LONG_ENOUGH), [], "only held jobs lapse")


async def case_leases_are_cut_when_the_clock_went_back(store: Storage, clock: Hand) -> None:
    record, cancelled = await running(store, lease=30 * SECOND), await running(store, lease=30 * SECOND)
    await told(store, cancelled.id, Cancelled())
    clock.advance(-3600)
    same(await store.lapsed(9, LONG_ENOUGH), [], "nothing has lapsed")
    after = await seen(store, record.id)
    same(after.leased_until, await store.now() + 30 * SECOND, "a lease that lies too far ahead is cut to now + lease")
    same(after.version, record.version, "the cut leaves the version")
    accepted((await store.renew([record.hold]))[0], "the holder is not disturbed")
    clock.advance(30)
    found = ids(await store.lapsed(9, LONG_ENOUGH))
    same(sorted(found), sorted([record.id, cancelled.id]), "reaped a lease later, not an hour later")


async def case_leases_are_cut_whatever_the_contact(store: Storage, clock: Hand) -> None:
    record = await running(store, lease=300 * SECOND)
    clock.advance(-3600)
    await store.lapsed(0, 0)
    after = await seen(store, record.id)
    same(after.leased_until, await store.now() + 300 * SECOND, "leases are cut first, whatever may be reaped")


async def case_reaped_jobs_are_claimed_again(store: Storage, clock: Hand) -> None:
    record = await running(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    accepted(await say(store, lapsed, LeaseLapsed()), "the reaper's word")
    same((await seen(store, record.id)).state, State.READY, "a reaped job is ready")
    (again,) = await claim(store, 1, "w2")
    same((again.id, again.attempt, again.leased_by), (record.id, 2, "w2"), "the next attempt")
