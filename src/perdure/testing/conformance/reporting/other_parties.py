"""apply: reports of others than the holder: cancel, retry, run now, delete; and the holder's Stopped."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import (
    Cancelled,
    Deleted,
    Expired,
    Failed,
    LeaseLapsed,
    Retried,
    RunNow,
    Stopped,
    Succeeded,
)
from perdure.core.retention import HIDDEN_FOR, Retention
from perdure.storage.contract import Filter, Refusal, Storage

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


async def case_cancel_of_a_waiting_job(store: Storage, clock: MovableClock) -> None:
    for fields in ({}, {"delay": SECOND}, {"waits": 1}):
        new = job(retention=Retention.keep(age=60).text(), **fields)
        await store.enqueue([new])
        before = await read_job(store, new.id)
        after = await report(store, new.id, Cancelled("why"))
        now = await store.now()
        wanted = {
            "state": State.CANCELLED,
            "version": before.version + 1,
            "reason": "why",
            "finished_at": now,
            "prune_at": now + 60 * SECOND,
        }
        assert_changed_only(before, after, "a cancel", **wanted)
    clock.advance(5)
    assert_equal(await claim(store, 9), [], "a cancelled job is not claimed")


async def case_cancel_of_a_running_job_keeps_the_hold(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep().text())
    clock.advance(1)
    after = await report(store, record.id, Cancelled("why"))
    now = await store.now()
    wanted = {"state": State.CANCELLED, "version": record.version + 1, "reason": "why", "finished_at": now}
    assert_changed_only(record, after, "a cancel of a running job (the hold stays)", **wanted)


async def case_stopped_gives_up_the_hold(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    cancelled = await report(store, record.id, Cancelled("why"))
    clock.advance(1)
    assert_accepted(await apply_report(store, record, Stopped()), "the holder's Stopped")
    after = await read_job(store, record.id)
    wanted = {"stamp": None, "leased_by": None, "leased_until": None}
    assert_changed_only(cancelled, after, "Stopped", version=cancelled.version + 1, **wanted)
    assert_refused(await apply_report(store, record, Stopped()), Refusal.CANCELLED, "a repeated Stopped")
    assert_refused(
        await apply_report(store, record, Succeeded()),
        Refusal.CANCELLED,
        "a success that was never accepted, after Stopped",
    )
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "nothing is left to reap")


async def case_lease_end_of_an_ended_job(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    cancelled = await report(store, record.id, Cancelled("why"))
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    assert_accepted(await apply_report(store, lapsed, LeaseLapsed(charged=True)), "LeaseEnded of a cancelled job")
    after = await read_job(store, record.id)
    wanted = {"stamp": None, "leased_by": None, "leased_until": None, "version": cancelled.version + 1}
    assert_changed_only(cancelled, after, "the lease end of an ended job", **wanted)
    assert_refused(await apply_report(store, record, Stopped()), Refusal.CANCELLED, "Stopped after the lease end")


async def case_lease_end_of_a_running_job(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    after = await report(store, lapsed.id, LeaseLapsed(fault("lost"), charged=True))
    wanted = {
        "state": State.READY,
        "version": record.version + 1,
        "losses": 1,
        "suspect": True,
        "errors": after.errors,
        "stamp": None,
        "leased_by": None,
        "leased_until": None,
    }
    assert_changed_only(record, after, "the lease end of a running job", **wanted)


async def case_three_charged_losses_are_poison(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    for _ in range(3):
        await claim(store, 1, alone=(await read_job(store, new.id)).suspect)
        clock.advance(60)
        (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
        await report(store, lapsed.id, LeaseLapsed(charged=True))
    after = await read_job(store, new.id)
    assert_equal((after.state, after.losses, after.failures), (State.DEAD, 3, 0), "dead after three charged losses")


async def case_retry_of_a_dead_letter(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, max_attempts=1, dead_retention=Retention.keep(last=5, age=99).text())
    dead = await report(store, record.id, Failed(fault("why"), started_at=5))
    clock.advance(10)
    after = await report(store, record.id, Retried())
    now = await store.now()
    wanted = {
        "state": State.READY,
        "version": dead.version + 1,
        "failures": 0,
        "losses": 0,
        "run_at": now,
        "rank": now,
        "finished_at": None,
        "prune_at": None,
        "keep_last": None,
        "reason": None,
    }
    assert_changed_only(dead, after, "the retry of a dead letter (history and attempt stay)", **wanted)
    (again,) = await claim(store)
    assert_equal(again.attempt, 2, "the attempt never falls")


async def case_hurry_up(store: Storage, clock: MovableClock) -> None:
    new = job(delay=99 * SECOND)
    await store.enqueue([new])
    before = await read_job(store, new.id)
    clock.advance(1)
    after = await report(store, new.id, RunNow())
    now = await store.now()
    assert_changed_only(before, after, "run_now", state=State.READY, version=before.version + 1, run_at=now, rank=now)
    assert_equal(ids(await claim(store)), [new.id], "a hurried job is claimed now")


async def case_expire(store: Storage, clock: MovableClock) -> None:
    new = job(expires=SECOND)
    await store.enqueue([new])
    clock.advance(1)
    (late,) = await store.expired(9)
    assert_accepted(await apply_report(store, late, Expired()), "upkeep's Expired")
    after = await read_job(store, new.id)
    assert_equal((after.state, after.reason), (State.CANCELLED, "expired"), "an expired job is cancelled")


async def case_delete_hides_a_waiting_job(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    after = await report(store, new.id, Deleted())
    assert_equal((after.state, after.hidden), (State.CANCELLED, True), "a deleted waiting job")
    assert_equal(after.prune_at, await store.now() + HIDDEN_FOR, "it stays hidden for ten minutes")
    assert_equal(await claim(store, 9), [], "it is not claimed")
    assert_equal(await store.count(Filter()), 0, "it is not counted")


async def case_delete_of_an_ended_job_keeps_its_end(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep(last=9).text())
    ended = await report(store, record.id, Succeeded("1"))
    clock.advance(5)
    after = await report(store, record.id, Deleted())
    wanted = {"version": ended.version + 1, "hidden": True, "prune_at": await store.now() + HIDDEN_FOR}
    assert_changed_only(ended, after, "deleting an ended job (finished_at stays)", keep_last=None, **wanted)


async def case_delete_of_a_running_job_keeps_the_hold(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    after = await report(store, record.id, Deleted())
    assert_equal((after.state, after.hidden, after.stamp), (State.CANCELLED, True, record.stamp), "hidden, and held")
    assert_equal(after.leased_until, record.leased_until, "the lease continues")
    assert_accepted(await apply_report(store, record, Stopped()), "the holder's Stopped about a deleted job")


async def case_delete_of_a_cancelled_job_that_is_held(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Cancelled())
    after = await report(store, record.id, Deleted())
    assert_equal(
        (after.hidden, after.stamp), (True, record.stamp), "deleting an ended job leaves a hold that it carries"
    )


async def case_an_ended_job_stays_ended(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    ended = await report(store, record.id, Succeeded("1"))
    assert_refused(await apply_report(store, record, Cancelled()), Refusal.STALE, "a cancel that comes after the end")
    assert_unchanged(ended, await read_job(store, record.id), "a cancel that came too late")
