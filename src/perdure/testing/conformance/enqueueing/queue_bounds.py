"""enqueue into a bounded queue: reject, drop or wait; all or nothing."""

from __future__ import annotations

from perdure.core.lifecycle import Cancelled
from perdure.core.record import NewJob
from perdure.storage.contract import EnqueueResult, QueueAtCapacity, QueueSettings, Storage

from ..tools import MovableClock, assert_equal, assert_true, claim, ids, job, report, unique


async def case_reject(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=2, on_full="reject"))
    await store.enqueue([job(queue="q"), job(queue="q")])
    full = await _full(store, [job(queue="q")])
    assert_equal(
        (full.queue, full.max_depth, full.waits), ("q", 2, False), "Full tells the queue, its depth and its policy"
    )


async def case_wait(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1, on_full="wait"))
    await store.enqueue([job(queue="q")])
    assert_true((await _full(store, [job(queue="q")])).waits, "with on_full=wait the caller must wait")


async def case_drop_everything(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1, on_full="drop"))
    first, second, elsewhere = job(queue="q"), job(queue="q", priority=99), job()
    wanted = [EnqueueResult(first.id), EnqueueResult(second.id, dropped=True), EnqueueResult(elsewhere.id)]
    assert_equal(await store.enqueue([first, second, elsewhere]), wanted, "drop without drop_below drops every job")
    assert_equal(await store.get([second.id]), [None], "nothing is stored of a dropped job")


async def case_drop_below(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1, on_full="drop", drop_below=5))
    await store.enqueue([job(queue="q")])
    low = job(queue="q", priority=4)
    assert_equal(await store.enqueue([low]), [EnqueueResult(low.id, dropped=True)], "a job below drop_below is dropped")
    assert_true((await _full(store, [job(queue="q", priority=5)])).waits, "a job at drop_below waits")


async def case_all_or_nothing(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=2))
    jobs = [job(), unique("active", queue="q"), job(queue="q"), job(queue="q"), job()]
    await _full(store, jobs)
    assert_equal(
        await store.get(ids(jobs)), [None] * 5, "when the queue has no room for one, nothing of the list is stored"
    )
    again = unique("active", queue="q")
    assert_equal(await store.enqueue([again]), [EnqueueResult(again.id)], "a refused list holds no key")


async def case_room_is_counted_inside_the_list(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=3, on_full="drop"))
    dropped = [stored.dropped for stored in await store.enqueue([job(queue="q") for _ in range(5)])]
    assert_equal(dropped, [False, False, False, True, True], "jobs earlier in the list take the room")


async def case_depth_counts_all_that_waits(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=3))
    ready, scheduled, blocked = job(queue="q"), job(queue="q", delay=99), job(queue="q", waits=1)
    await store.enqueue([ready, scheduled, blocked])
    await _full(store, [job(queue="q")])
    await claim(store)
    assert_equal(len(await store.enqueue([job(queue="q")])), 1, "a running job takes no room")
    await _full(store, [job(queue="q")])
    await report(store, scheduled.id, Cancelled())
    assert_equal(len(await store.enqueue([job(queue="q")])), 1, "a cancelled job takes no room")


async def case_known_jobs_need_no_room(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1))
    owner = unique("active", queue="q")
    await store.enqueue([owner])
    assert_equal(await store.enqueue([owner]), [EnqueueResult(owner.id)], "a repeated enqueue needs no room")
    other = unique("active", queue="q")
    assert_equal(await store.enqueue([other]), [EnqueueResult(owner.id, duplicate=True)], "a duplicate needs no room")


async def case_a_dropped_job_takes_no_key(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=0, on_full="drop"))
    for scope in ("active", "any"):
        dropped, elsewhere = unique(scope, queue="q"), unique(scope)
        wanted = [EnqueueResult(dropped.id, dropped=True), EnqueueResult(elsewhere.id)]
        assert_equal(await store.enqueue([dropped, elsewhere]), wanted, f"a dropped job takes no key ({scope})")


async def case_a_bound_can_be_lifted(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1))
    await store.enqueue([job(queue="q")])
    await _full(store, [job(queue="q")])
    await store.configure(QueueSettings("q"))
    assert_equal(len(await store.enqueue([job(queue="q") for _ in range(5)])), 5, "without max_depth there is no bound")


async def case_a_policy_without_a_bound(store: Storage, clock: MovableClock) -> None:
    for settings in (QueueSettings("q", on_full="drop"), QueueSettings("q", on_full="wait")):
        await store.configure(settings)
        stored = await store.enqueue([job(queue="q") for _ in range(5)])
        assert_equal(
            [each.dropped for each in stored], [False] * 5, f"without max_depth, {settings.on_full!r} has no effect"
        )


async def _full(store: Storage, jobs: list[NewJob]) -> QueueAtCapacity:
    try:
        stored = await store.enqueue(jobs)
    except QueueAtCapacity as full:
        return full
    raise AssertionError(f"the queue is full: enqueue must raise Full; it answered {stored}")
