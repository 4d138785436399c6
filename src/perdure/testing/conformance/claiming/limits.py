"""Limits: parked jobs, how many run at once, how many start in a window, and counts that never drift."""

from __future__ import annotations

import asyncio
import json

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import (
    Cancelled,
    Deleted,
    Died,
    Failed,
    HandedBack,
    LeaseLapsed,
    Report,
    Retried,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
    decide,
)
from perdure.core.record import NewJob
from perdure.storage.contract import Claim, Filter, QueueAtCapacity, QueueSettings, Refusal, Storage, Want

from ..flows.helpers import after
from ..tools import (
    LONG_ENOUGH,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_true,
    claim,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
)


def at_once(most: int, key: str = "k") -> str:
    return json.dumps([[key, most, None, None]])


def rate(starts: int, seconds: float, key: str = "r") -> str:
    return json.dumps([[key, None, starts, int(seconds * SECOND)]])


def limited_jobs(count: int, limits: str, **fields: object) -> list[NewJob]:
    return [job(limits=limits, **fields) for _ in range(count)]


async def case_parked_while_ready(store: Storage, clock: MovableClock) -> None:
    jobs = [job(limits=at_once(1)), job(limits=at_once(1), delay=SECOND), job()]
    await store.enqueue(jobs)
    found = [(row.state, row.parked) for row in [await read_job(store, new.id) for new in jobs]]
    wanted = [(State.READY, True), (State.SCHEDULED, False), (State.READY, False)]
    assert_equal(found, wanted, "a ready job under limits is parked")
    clock.advance(2)
    await store.promote(9)
    assert_equal((await read_job(store, jobs[1].id)).parked, True, "a promoted one too")


async def case_only_a_want_that_asks_for_them(store: Storage, clock: MovableClock) -> None:
    plain, under = job(), job(limits=at_once(5))
    await store.enqueue([plain, under])
    assert_equal(ids(await claim(store, 9)), [plain.id], "a plain want leaves limited jobs out")
    more = job()
    await store.enqueue([more])
    claimed = await claim(store, 9, limited=True)
    assert_equal(ids(claimed), [under.id], "a want for limited jobs takes no others")
    assert_equal(
        (claimed[0].state, claimed[0].parked, claimed[0].attempt), (State.RUNNING, False, 1), "what a claim writes"
    )
    assert_equal(await read_job(store, under.id), claimed[0], "a claim hands out the row as it is after the claim")


async def case_at_most_so_many_run(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(5, at_once(2))
    await store.enqueue(jobs)
    first = await claim(store, 9, limited=True)
    assert_equal(ids(first), ids(jobs[:2]), "the best two, and no more")
    assert_equal(await claim(store, 9, "w2", limited=True), [], "no room while they run, for any worker")
    await report(store, first[0].id, Succeeded())
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs[2].id], "one has ended, one may start")
    await report(store, first[1].id, Failed(fault(), delay=SECOND))
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs[3].id], "a failed attempt makes room")


async def case_every_end_of_a_hold_makes_room(store: Storage, clock: MovableClock) -> None:
    ends: list[Report] = [
        Succeeded(),
        Failed(fault(), delay=9 * SECOND),
        Snoozed(delay=9 * SECOND),
        Died("no"),
        HandedBack(),
    ]
    for number, reported in enumerate(ends):
        limits = at_once(1, f"k{number}")
        jobs = limited_jobs(2, limits, task=f"t{number}")
        await store.enqueue(jobs)
        (held,) = await claim(store, 9, tasks=(f"t{number}",), limited=True)
        await report(store, held.id, reported)
        (next_one,) = await claim(store, 9, tasks=(f"t{number}",), limited=True)
        wanted = jobs[0].id if isinstance(reported, HandedBack) else jobs[1].id
        assert_equal(next_one.id, wanted, f"after {type(reported).__name__} there is room")


async def case_a_lapsed_hold_makes_room_when_reaped(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(2, at_once(1), lease=9 * SECOND)
    await store.enqueue(jobs)
    (held,) = await claim(store, 9, limited=True)
    clock.advance(10)
    assert_equal(await claim(store, 9, limited=True), [], "a lapsed hold counts until it is reaped")
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    assert_accepted(await apply_report(store, lapsed, LeaseLapsed()), "reaping it")
    assert_equal(ids(await claim(store, 9, limited=True)), [held.id], "the reaped one is parked again, and first")


async def case_holds_are_kept_like_all_others(store: Storage, clock: MovableClock) -> None:
    leases = [(30, None), (10, at_once(9)), (20, None), (40, at_once(9, "other")), (50, at_once(9))]
    jobs = [job(lease=lease * SECOND, limits=limits) for lease, limits in leases]
    await store.enqueue(jobs)
    wants = (Want(9), Want(9, limited=True))
    claimed = await store.claim(Claim("w1", 7, wants))
    assert_equal(sorted(ids(claimed)), sorted(ids(jobs)), "jobs of both kinds in one claim")
    held = sorted(await store.recover_claim("w1", 7), key=lambda record: record.id)
    assert_equal(held, sorted(claimed, key=lambda record: record.id), "holding tells those under limits too")
    assert_equal(sorted(await _running(store)), sorted(ids(jobs)), "and so does a listing")
    clock.advance(-3600)
    assert_equal(await store.lapsed(9, LONG_ENOUGH), [], "nothing has lapsed")
    now = await store.now()
    found = [(await read_job(store, new.id)).leased_until for new in jobs]
    assert_equal(found, [now + lease * SECOND for lease, _ in leases], "leases that reach too far are cut, all of them")
    clock.advance(45)
    wanted = ids([jobs[1], jobs[2], jobs[0], jobs[3]])
    assert_equal(ids(await store.lapsed(9, LONG_ENOUGH)), wanted, "the longest over first, under limits or not")
    assert_equal(ids(await store.lapsed(2, LONG_ENOUGH)), wanted[:2], "at most `limit`")
    assert_equal(ids(await store.lapsed(9, 8 * SECOND)), ids([jobs[1], jobs[2]]), "contact of a third of the lease")


async def case_parked_jobs_wait_in_their_queue(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=4))
    jobs = [*limited_jobs(2, at_once(1), queue="q"), *limited_jobs(1, at_once(1, "other"), queue="q", task="another")]
    await store.enqueue([*jobs, *limited_jobs(1, at_once(1), queue="elsewhere")])
    clock.advance(5)
    depths = {row.settings.name: (row.depth, row.oldest) for row in await store.queues()}
    assert_equal(depths["q"], (3, 5 * SECOND), "parked jobs count, and have been due since they were enqueued")
    found, _ = await store.find(Filter(states=(State.READY,), queue="q"), 9, None)
    assert_equal(sorted(ids(found)), sorted(ids(jobs)), "they are found as ready")
    await store.enqueue([job(queue="q")])
    try:
        await store.enqueue([job(queue="q")])
    except QueueAtCapacity as full:
        assert_equal((full.queue, full.max_depth), ("q", 4), "parked jobs fill a queue")
    else:
        raise AssertionError("enqueue: parked jobs fill a queue, so Full must be raised")


async def case_cancelled_code_counts_until_it_stops(store: Storage, clock: MovableClock) -> None:
    reports: tuple[Report, ...] = (Cancelled(), Deleted())
    for number, reported in enumerate(reports):
        jobs = limited_jobs(2, at_once(1, f"k{number}"), task=f"t{number}")
        await store.enqueue(jobs)
        (held,) = await claim(store, 9, tasks=(f"t{number}",), limited=True)
        await report(store, held.id, reported)
        assert_equal(await claim(store, 9, tasks=(f"t{number}",), limited=True), [], "its code may still run")
        assert_accepted((await store.apply([decide(held, Stopped())]))[0], "the holder's last report")
        assert_equal(ids(await claim(store, 9, tasks=(f"t{number}",), limited=True)), [jobs[1].id], "now there is room")


async def case_a_refused_end_leaves_the_hold_to_stopped(store: Storage, clock: MovableClock) -> None:
    """The handler ended before it learned of the cancel, so its report is refused. `Stopped` frees slot and key at once."""
    ends: tuple[Report, ...] = (Succeeded("1"), Failed(fault()), HandedBack(), Skipped())
    for number, end in enumerate(ends):
        task, key = f"t{number}", f"k{number}"
        wanted = {"task": task, "unique_key": key, "unique_scope": "active"}
        (first,) = limited_jobs(1, at_once(1, key), **wanted)
        await store.enqueue([first])
        (held,) = await claim(store, 9, tasks=(task,), limited=True)
        await report(store, held.id, Cancelled())
        assert_refused(
            await apply_report(store, held, end), Refusal.CANCELLED, f"{type(end).__name__} of a cancelled job"
        )
        (second,) = limited_jobs(1, at_once(1, key), **wanted)
        assert_equal((await store.enqueue([second]))[0].duplicate, True, "a refused end frees no key")
        assert_accepted(await apply_report(store, held, Stopped()), "Stopped after a refused end")
        assert_equal((await store.enqueue([second]))[0].duplicate, False, "the key is free")
        assert_equal(ids(await claim(store, 9, tasks=(task,), limited=True)), [second.id], "there is room")


async def case_starts_in_a_window(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(7, rate(3, 10))
    await store.enqueue(jobs)
    assert_equal(ids(await claim(store, 2, limited=True)), ids(jobs[:2]), "two start")
    clock.advance(4)
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs[2].id], "the third start of the window")
    answer = await store.exchange([], Claim("w1", new_stamp(), (Want(9, limited=True),)))
    assert_equal(list(answer.claimed), [], "no fourth one, even when all have ended")
    assert_equal(answer.next_due, 6 * SECOND, "next_due: until the oldest start leaves the window")
    clock.advance(5.999999)
    assert_equal(await claim(store, 9, limited=True), [], "a window slides; its begin does not count")
    clock.advance(0.000001)
    assert_equal(ids(await claim(store, 9, limited=True)), ids(jobs[3:5]), "as many as left the window")
    clock.advance(4)
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs[5].id], "and one more")


async def case_a_clock_that_goes_back_spends_no_more_than_a_window(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(3, rate(1, 10))
    await store.enqueue(jobs)
    await claim(store, 1, limited=True)
    clock.advance(-4000)
    assert_equal(await claim(store, 1, limited=True), [], "a start in the future counts as one made now")
    clock.advance(10)
    found = ids(await claim(store, 1, limited=True))
    if not found:  # a store may notice only at a claim that the clock went back
        clock.advance(10)
        found = ids(await claim(store, 1, limited=True))
    assert_equal(found, [jobs[1].id], "and is over a window later")


async def case_several_limits_hold_together(store: Storage, clock: MovableClock) -> None:
    shared = ["all", 3, None, None]
    jobs = {tenant: limited_jobs(4, json.dumps([shared, [tenant, 2, None, None]])) for tenant in ("a", "b")}
    await store.enqueue([*jobs["a"], *jobs["b"]])
    claimed = ids(await claim(store, 9, limited=True))
    assert_equal(claimed, [*ids(jobs["a"][:2]), jobs["b"][0].id], "two of a, one of b: three of all")
    await report(store, claimed[2], Succeeded())
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs["b"][1].id], "a is full, b gets the room")
    await report(store, claimed[0], Succeeded())
    assert_equal(ids(await claim(store, 9, limited=True)), [jobs["a"][2].id], "best first among those that may start")


async def case_blocked_gates_hide_no_job(store: Storage, clock: MovableClock) -> None:
    full = limited_jobs(40, at_once(1, "full"), priority=9)
    others = [job(limits=at_once(1, f"k{number}")) for number in range(30)]
    await store.enqueue([*full, *others])
    assert_equal(len(await claim(store, 99, limited=True)), 31, "one of the full gate, one of each other")
    assert_equal(await claim(store, 99, limited=True), [], "no job is left that may start")


async def case_order_and_wants(store: Storage, clock: MovableClock) -> None:
    low, high = limited_jobs(2, at_once(9)), limited_jobs(2, at_once(9), priority=5, queue="q")
    other = limited_jobs(1, at_once(9, "other"), priority=3, routing_key="x", task="t2")
    await store.enqueue([*low, *high, *other])
    assert_equal(
        ids(await claim(store, 1, limited=True, routing=None, queues=("default",))), [low[0].id], "routing and queue"
    )
    assert_equal(
        ids(await claim(store, 9, limited=True)), ids([*high, *other, low[1]]), "priority, then rank, over all gates"
    )


async def case_paused_and_expired(store: Storage, clock: MovableClock) -> None:
    paused, expired, fine = (
        job(queue="p", limits=at_once(1), priority=9),
        job(limits=at_once(1), expires=SECOND, priority=8),
        job(limits=at_once(1)),
    )
    await store.enqueue([paused, expired, fine])
    await store.pause("p", True)
    clock.advance(2)
    assert_equal(ids(await claim(store, 9, limited=True)), [fine.id], "jobs that cannot run take no room")
    await report(store, fine.id, Succeeded())
    answer = await store.exchange([], Claim("w1", new_stamp(), (Want(9, limited=True),)))
    assert_equal((list(answer.claimed), answer.next_due), ([], None), "nor are they waited for")
    await store.pause("p", False)
    assert_equal(ids(await claim(store, 9, limited=True)), [paused.id], "after the pause it may start")


async def case_suspects_run_alone(store: Storage, clock: MovableClock) -> None:
    (new,) = limited_jobs(1, at_once(1), lease=9 * SECOND)
    await store.enqueue([new])
    await claim(store, 1, limited=True)
    clock.advance(10)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    await apply_report(store, lapsed, LeaseLapsed(suspect=True))
    answer = await store.exchange([], Claim("w1", new_stamp(), (Want(9, limited=True),)))
    assert_equal((list(answer.claimed), answer.suspects), ([], True), "a limited suspect is left out and reported")
    assert_equal(ids(await claim(store, 1, limited=True, alone=True)), [new.id], "alone it runs")


async def case_dead_letters_wait_again(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(2, at_once(1))
    await store.enqueue(jobs)
    (held,) = await claim(store, 9, limited=True)
    await report(store, held.id, Died("no"))
    row = await report(store, held.id, Retried())
    assert_equal((row.state, row.parked), (State.READY, True), "a retried one is parked")
    assert_equal(len(await claim(store, 9, limited=True)), 1, "and under its limit")


async def case_many_at_once(store: Storage, clock: MovableClock) -> None:
    jobs = limited_jobs(30, json.dumps([["k", 3, 20, 100 * SECOND]]))
    await store.enqueue(jobs)
    peak = done = 0

    async def work(worker: str) -> None:
        nonlocal peak, done
        while done < 20:
            held = await claim(store, 2, worker, limited=True)
            if not held:
                await asyncio.sleep(0.001)
                continue
            peak = max(peak, len(await _running(store)))
            await store.apply([decide(record, Succeeded()) for record in held])
            done += len(held)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(f"w{number}") for number in range(4)))
    assert_true(peak <= 3, f"at most three at once; there were {peak}")
    assert_equal(done, 20, "at most twenty in the window, and all of those")
    assert_equal(await claim(store, 9, limited=True), [], "no more")


async def case_limits_of_a_released_job(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent, limits='[["k",1,null,null]]')
    await store.enqueue([child])
    await report(store, parent.id, Succeeded())
    assert_equal((await read_job(store, child.id)).parked, True, "a released job under limits is parked")
    assert_equal(ids(await claim(store, 9, limited=True)), [child.id], "and runs under them")


async def _running(store: Storage) -> list[str]:
    return ids((await store.find(Filter(states=(State.RUNNING,)), 99, None))[0])
