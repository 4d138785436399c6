"""expired: waiting jobs that did not start in time."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Cancelled, Expired, Failed, HandedBack, Succeeded
from perdure.storage.contract import Storage

from ..tools import MovableClock, assert_equal, claim, enqueue_and_claim, fault, ids, job, read_job, report


async def case_when_not_started_in_time(store: Storage, clock: MovableClock) -> None:
    late, fine, plain = job(expires=10 * SECOND), job(expires=11 * SECOND), job()
    await store.enqueue([late, fine, plain])
    clock.advance(9.999999)
    assert_equal(await store.expired(9), [], "a microsecond too early")
    clock.advance(0.000001)
    assert_equal(await store.expired(9), [await read_job(store, late.id)], "from expires_at on; the current row")


async def case_every_waiting_state(store: Storage, clock: MovableClock) -> None:
    jobs = [job(expires=SECOND), job(expires=SECOND, delay=99 * SECOND), job(expires=SECOND, waits=1)]
    await store.enqueue(jobs)
    clock.advance(1)
    assert_equal(sorted(ids(await store.expired(9))), sorted(ids(jobs)), "ready, scheduled and blocked jobs expire")


async def case_the_longest_over_first(store: Storage, clock: MovableClock) -> None:
    jobs = [job(expires=seconds * SECOND) for seconds in (3, 1, 2)]
    await store.enqueue(jobs)
    clock.advance(9)
    wanted = [jobs[1].id, jobs[2].id, jobs[0].id]
    assert_equal(ids(await store.expired(9)), wanted, "the longest over first")
    assert_equal(ids(await store.expired(2)), wanted[:2], "at most `limit`")


async def case_not_what_runs_or_has_ended(store: Storage, clock: MovableClock) -> None:
    await enqueue_and_claim(store, expires=SECOND)
    done = await enqueue_and_claim(store, expires=SECOND)
    await report(store, done.id, Succeeded())
    cancelled = job(expires=SECOND)
    await store.enqueue([cancelled])
    await report(store, cancelled.id, Cancelled())
    clock.advance(9)
    assert_equal(await store.expired(9), [], "running and ended jobs do not expire")


async def case_not_what_has_started(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, expires=SECOND)
    await report(store, record.id, Failed(fault(), delay=0, started_at=await store.now()))
    clock.advance(9)
    assert_equal(await store.expired(9), [], "a job that started in time and waits for its retry does not expire")


async def case_claimed_but_never_started(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, expires=SECOND)
    await report(store, record.id, HandedBack())
    clock.advance(1)
    assert_equal(ids(await store.expired(9)), [record.id], "a claim is not a start")


async def case_back_in_time(store: Storage, clock: MovableClock) -> None:
    new = job(expires=10 * SECOND)
    await store.enqueue([new])
    clock.advance(20)
    assert_equal(await claim(store), [], "expired")
    clock.advance(-15)
    assert_equal(await store.expired(9), [], "not expired by the store's clock")
    assert_equal(ids(await claim(store)), [new.id], "and claimed: the store's clock decides")


async def case_removed_after_the_report(store: Storage, clock: MovableClock) -> None:
    new = job(expires=SECOND)
    await store.enqueue([new])
    clock.advance(1)
    await report(store, new.id, Expired())
    assert_equal(await store.expired(9), [], "an expired job is listed until it is cancelled")
