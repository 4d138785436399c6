"""promote: scheduled jobs become ready when their time has come."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, RunNow, Snoozed
from perdure.storage.contract import Storage

from ..tools import Hand, changed, claim, job, running, same, seen, told


async def case_when_its_time_has_come(store: Storage, clock: Hand) -> None:
    new = job(delay=10 * SECOND)
    await store.enqueue([new, job(waits=1)])
    before = await seen(store, new.id)
    clock.advance(9.999999)
    same(await store.promote(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    same(await store.promote(9), 1, "from run_at on")
    after = await seen(store, new.id)
    changed(before, after, "promotion", state=State.READY, version=before.version + 1)
    same(await store.promote(9), 0, "nothing is left")


async def case_the_earliest_first(store: Storage, clock: Hand) -> None:
    jobs = [job(delay=delay * SECOND) for delay in (3, 1, 2)]
    await store.enqueue(jobs)
    clock.advance(5)
    for position in (1, 2, 0):
        same(await store.promote(1), 1, "at most `limit`")
        same(await _state(store, jobs[position].id), State.READY, "the earliest first")
    same(await store.promote(1), 0, "nothing is left")


async def case_one_instant_by_id(store: Storage, clock: Hand) -> None:
    jobs = [job(delay=SECOND) for _ in range(4)]
    await store.enqueue(jobs[::-1])
    clock.advance(1)
    await store.promote(2)
    states = [await _state(store, new.id) for new in jobs]
    same(states, [State.READY] * 2 + [State.SCHEDULED] * 2, "jobs of one instant by id")


async def case_not_what_has_moved(store: Storage, clock: Hand) -> None:
    cancelled, hurried = job(delay=SECOND), job(delay=SECOND)
    await store.enqueue([cancelled, hurried])
    await told(store, cancelled.id, Cancelled())
    await told(store, hurried.id, RunNow())
    clock.advance(5)
    same(await store.promote(9), 0, "cancelled and hurried jobs are not promoted")
    same(await _state(store, cancelled.id), State.CANCELLED, "a cancelled job stays cancelled")


async def case_by_its_latest_time(store: Storage, clock: Hand) -> None:
    record = await running(store)
    await told(store, record.id, Snoozed(delay=5 * SECOND))
    clock.advance(5)
    await claim(store)
    await told(store, record.id, Snoozed(delay=50 * SECOND))
    clock.advance(10)
    same(await store.promote(9), 0, "a job is due at its latest run_at, not at an earlier one")
    clock.advance(40)
    same(await store.promote(9), 1, "a job is due at its latest run_at")


async def case_not_by_a_time_that_was_given_up(store: Storage, clock: Hand) -> None:
    new = job(delay=50 * SECOND)
    await store.enqueue([new])
    await told(store, new.id, RunNow())
    await claim(store)
    await told(store, new.id, Snoozed(delay=100 * SECOND))
    clock.advance(60)
    same(await store.promote(9), 0, "a job that was hurried up and snoozed is due when the snooze ends")
    clock.advance(40)
    same(await store.promote(9), 1, "a job that was hurried up and snoozed is due when the snooze ends")


async def case_after_the_clock_went_back(store: Storage, clock: Hand) -> None:
    new = job(delay=10 * SECOND)
    await store.enqueue([new])
    clock.advance(-100)
    same(await store.promote(9), 0, "not due by the store's clock")
    clock.advance(110)
    same(await store.promote(9), 1, "due when the store's clock says so")


async def _state(store: Storage, id: str) -> State:
    return (await seen(store, id)).state
