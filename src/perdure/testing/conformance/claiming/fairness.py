"""Fair queues: the ranks of tenants."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Failed, Snoozed, Succeeded
from perdure.storage.contract import QueueSettings, Storage
from perdure.storage.rules.fairness import SHARE

from ..tools import MovableClock, assert_equal, assert_true, claim, fault, ids, job, read_job, report


async def case_a_long_queue_delays_no_other(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    await store.enqueue([job(queue="q", tenant="big/1") for _ in range(100)])
    await claim(store, 10)
    late = job(queue="q", tenant="small")
    await store.enqueue([late])
    claimed = await claim(store, 3)
    assert_true(late.id in ids(claimed), "another tenant's first job is among the next")


async def case_equal_shares(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    for tenant, count in (("a", 30), ("b", 10), ("c", 10)):
        await store.enqueue([job(queue="q", tenant=tenant) for _ in range(count)])
    shares = Counter(record.tenant for record in await claim(store, 30))
    assert_equal(shares, Counter(a=10, b=10, c=10), "each tenant gets its turn")


async def case_weights(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True, weights='{"a": 3}'))
    for tenant in ("a", "b"):
        await store.enqueue([job(queue="q", tenant=f"{tenant}/x") for _ in range(40)])
    shares = Counter(record.tenant for record in await claim(store, 40))
    assert_equal(shares, Counter({"a/x": 30, "b/x": 10}), "three times the weight, three times the share")


async def case_priority_comes_first(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    low = [job(queue="q", tenant="a") for _ in range(3)]
    high = [job(queue="q", tenant="b", priority=1) for _ in range(3)]
    await store.enqueue([*low, *high])
    assert_equal(ids(await claim(store, 6)), ids([*high, *low]), "shares apply within a priority")


async def case_one_tenants_jobs_keep_their_order(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    jobs = [job(queue="q") for _ in range(5)]
    await store.enqueue(jobs[:3])
    await store.enqueue(jobs[3:])
    rows = [await read_job(store, new.id) for new in jobs]
    gaps = {later.rank - earlier.rank for earlier, later in pairwise(rows)}
    assert_equal(gaps, {SHARE}, "one share after the other")
    assert_equal(ids(await claim(store, 9)), ids(jobs), "in list order")


async def case_a_retry_keeps_its_place_and_a_snooze_pays(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    jobs = [job(queue="q") for _ in range(3)]
    await store.enqueue(jobs)
    rows = await claim(store, 2)
    failed = await report(store, rows[0].id, Failed(fault(), delay=SECOND))
    snoozed = await report(store, rows[1].id, Snoozed(delay=SECOND))
    assert_equal(failed.rank, rows[0].rank, "a retry keeps its rank")
    assert_equal(snoozed.rank, rows[1].rank + SHARE, "a snooze moves back by a share")
    clock.advance(2)
    await store.promote(9)
    assert_equal((await read_job(store, failed.id)).rank, failed.rank, "becoming ready changes no rank")


async def case_a_plain_queue_ranks_by_time(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    new = job(queue="other", tenant="a")
    await store.enqueue([new])
    row = await read_job(store, new.id)
    assert_equal(row.rank, row.run_at, "rank = run_at")
    (held,) = await claim(store, 1)
    again = await report(store, held.id, Snoozed(delay=9 * SECOND))
    assert_equal(again.rank, again.run_at, "and stays so")


async def case_idle_tenants_save_nothing(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    await store.enqueue([job(queue="q", tenant="idle")])
    for _ in range(3):
        await store.enqueue([job(queue="q", tenant="busy") for _ in range(10)])
        for record in await claim(store, 11):
            await report(store, record.id, Succeeded())
    await store.enqueue([job(queue="q", tenant="busy") for _ in range(4)])
    await store.enqueue([job(queue="q", tenant="idle") for _ in range(4)])
    shares = Counter(record.tenant for record in await claim(store, 4))
    assert_equal(shares, Counter(busy=2, idle=2), "who was idle has no credit")


async def case_delayed_jobs_have_their_share_too(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", fair=True))
    later = job(queue="q", tenant="a", delay=5 * SECOND)
    await store.enqueue([later, *(job(queue="q", tenant="b") for _ in range(20))])
    clock.advance(6)
    claimed = await claim(store, 2)
    assert_true(later.id in ids(claimed), "it got its rank when it was enqueued")
    assert_equal(claimed[0].state, State.RUNNING, "it runs")
