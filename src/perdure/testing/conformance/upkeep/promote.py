"""promote: scheduled jobs become ready when they are due."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, RunNow, Snoozed
from perdure.storage.contract import Storage

from ..tools import MovableClock, assert_changed_only, assert_equal, claim, enqueue_and_claim, job, read_job, report


async def case_when_its_time_has_come(store: Storage, clock: MovableClock) -> None:
    new = job(delay=10 * SECOND)
    await store.enqueue([new, job(waits=1)])
    before = await read_job(store, new.id)
    clock.advance(9.999999)
    assert_equal(await store.promote(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    assert_equal(await store.promote(9), 1, "from run_at on")
    after = await read_job(store, new.id)
    assert_changed_only(before, after, "promotion", state=State.READY, version=before.version + 1)
    assert_equal(await store.promote(9), 0, "nothing is left")


async def case_the_earliest_first(store: Storage, clock: MovableClock) -> None:
    jobs = [job(delay=delay * SECOND) for delay in (3, 1, 2)]
    await store.enqueue(jobs)
    clock.advance(5)
    for position in (1, 2, 0):
        assert_equal(await store.promote(1), 1, "at most `limit`")
        assert_equal(await _state(store, jobs[position].id), State.READY, "the earliest first")
    assert_equal(await store.promote(1), 0, "nothing is left")


async def case_one_instant_by_id(store: Storage, clock: MovableClock) -> None:
    jobs = [job(delay=SECOND) for _ in range(4)]
    await store.enqueue(jobs[::-1])
    clock.advance(1)
    await store.promote(2)
    states = [await _state(store, new.id) for new in jobs]
    assert_equal(states, [State.READY] * 2 + [State.SCHEDULED] * 2, "jobs of one instant by id")


async def case_not_what_has_moved(store: Storage, clock: MovableClock) -> None:
    cancelled, hurried = job(delay=SECOND), job(delay=SECOND)
    await store.enqueue([cancelled, hurried])
    await report(store, cancelled.id, Cancelled())
    await report(store, hurried.id, RunNow())
    clock.advance(5)
    assert_equal(await store.promote(9), 0, "cancelled and hurried jobs are not promoted")
    assert_equal(await _state(store, cancelled.id), State.CANCELLED, "a cancelled job stays cancelled")


async def case_by_its_latest_time(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Snoozed(delay=5 * SECOND))
    clock.advance(5)
    await claim(store)
    await report(store, record.id, Snoozed(delay=50 * SECOND))
    clock.advance(10)
    assert_equal(await store.promote(9), 0, "a job is due at its latest run_at, not at an earlier one")
    clock.advance(40)
    assert_equal(await store.promote(9), 1, "a job is due at its latest run_at")


async def case_not_by_an_abandoned_time(store: Storage, clock: MovableClock) -> None:
    new = job(delay=50 * SECOND)
    await store.enqueue([new])
    await report(store, new.id, RunNow())
    await claim(store)
    await report(store, new.id, Snoozed(delay=100 * SECOND))
    clock.advance(60)
    assert_equal(await store.promote(9), 0, "a job that was hurried up and snoozed is due when the snooze ends")
    clock.advance(40)
    assert_equal(await store.promote(9), 1, "a job that was hurried up and snoozed is due when the snooze ends")


async def case_after_the_clock_went_back(store: Storage, clock: MovableClock) -> None:
    new = job(delay=10 * SECOND)
    await store.enqueue([new])
    clock.advance(-100)
    assert_equal(await store.promote(9), 0, "not due by the store's clock")
    clock.advance(110)
    assert_equal(await store.promote(9), 1, "due when the store's clock says so")


async def _state(store: Storage, id: str) -> State:
    return (await read_job(store, id)).state
