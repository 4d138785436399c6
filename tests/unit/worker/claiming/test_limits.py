"""Limits across workers: how many run at once, how many start in a time, and that nobody starves."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict

import pytest

from perdure import Backoff, Context, InvalidCall, JobDead, Limit, State, Unique
from tests.support.waiting import eventually, stays

SOON = Backoff.fixed(0.01)


class Meter:
    """How many run at once, by key, and when each began."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def run(self, key: str, seconds: float = 0.005) -> None:
        self.running[key] += 1
        self.peak[key] = max(self.peak[key], self.running[key])
        await asyncio.sleep(seconds)
        self.running[key] -= 1
        self.done[key] += 1


async def test_at_most_so_many_run_over_all_workers(app):
    meter = Meter()

    @app.task(limit=Limit(max_running=3))
    async def narrow() -> None:
        await meter.run("narrow")

    @app.task
    async def wide() -> None:
        await meter.run("wide")

    async with app, app.worker(name="one"), app.worker(name="two"):
        jobs = await app.enqueue([*(narrow.call() for _ in range(30)), *(wide.call() for _ in range(30))])
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    assert meter.peak["narrow"] == 3
    assert meter.done == {"narrow": 30, "wide": 30}


async def test_each_tenant_and_key_has_its_own(app):
    meter = Meter()

    @app.task(limit=[Limit(max_running=4), Limit(max_running=2, per="tenant"), Limit(max_running=1, per="key")])
    async def work(ctx: Context, key: str) -> None:
        meter.running["all"] += 1
        meter.peak["all"] = max(meter.peak["all"], meter.running["all"])
        await asyncio.gather(meter.run(f"tenant {(ctx.tenant or '').partition('/')[0]}"), meter.run(key))
        meter.running["all"] -= 1

    async with app, app.worker(concurrency=20):
        calls = [
            work.using(tenant=f"{tenant}/{number % 3}", key=f"{tenant} {number % 2}").call(f"{tenant} {number % 2}")
            for number in range(8)
            for tenant in ("a", "b", "c")
        ]
        jobs = await app.enqueue(calls)
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    assert meter.peak.pop("all") <= 4
    assert {peak for key, peak in meter.peak.items() if key.startswith("tenant")} <= {1, 2}
    assert {peak for key, peak in meter.peak.items() if not key.startswith("tenant")} == {1}


async def test_a_rate_is_never_exceeded_and_well_used(app, store):
    began: list[float] = []

    @app.task(limit=Limit(rate=(10, 0.5)))
    async def paced(ctx: Context) -> None:
        began.append(ctx.job.leased_until.timestamp() - 60)  # the instant of the claim by the store's clock

    async with app, app.worker(name="one"), app.worker(name="two"):
        jobs = await app.enqueue([paced.call() for _ in range(35)])
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    began.sort()
    for at in began:
        within = bisect_left(began, at + 0.4999) - bisect_left(began, at)
        assert within <= 10, f"{within} starts within half a second"
    assert began[-1] - began[0] < 6, "35 starts need one and a half seconds"


async def test_failures_snoozes_and_cancels_leave_no_slot_taken(app):
    runs: Counter[str] = Counter()

    @app.task(limit=Limit(max_running=1), backoff=SOON, max_attempts=2)
    async def moody(ctx: Context, how: str) -> None:
        runs[how] += 1
        if how == "fail":
            raise ValueError("no")
        if how == "long":
            await asyncio.sleep(60)

    async with app, app.worker():
        failing = [await moody.enqueue("fail") for _ in range(3)]
        for job in failing:
            with pytest.raises(JobDead, match="failed 2 of 2"):
                await job.result(timeout=60)
        long = await moody.enqueue("long")
        await eventually(lambda: app.jobs.count(state=State.RUNNING))
        after = await moody.enqueue("fine")
        await stays(lambda: app.jobs.count(state=State.READY), 0.05)
        assert await long.cancel()
        await after.result(timeout=60)
    assert runs == {"fail": 6, "long": 1, "fine": 1}


async def test_a_singleton_loses_no_work_and_never_runs_beside_itself(app):
    """A key that is free again at the first claim, and one slot: what comes while it runs gets one run more."""
    began, go, running, most = asyncio.Event(), asyncio.Event(), 0, 0

    @app.task(unique=Unique("only", scope="waiting"), limit=Limit(max_running=1))
    async def sweep() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        began.set()
        await go.wait()
        running -= 1

    async with app, app.worker():
        first = await sweep.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        late = [await sweep.enqueue() for _ in range(3)]
        assert [job.duplicate for job in late] == [False, True, True]
        assert len({first.id, *(job.id for job in late)}) == 2
        go.set()
        for job in (first, *late):
            await job.result(timeout=60)
    assert most == 1


async def test_limited_jobs_and_others_share_the_slots(app):
    order: list[str] = []

    @app.task(limit=Limit(max_running=100))
    async def limited() -> None:
        order.append("limited")
        await asyncio.sleep(0.002)

    @app.task
    async def plain() -> None:
        order.append("plain")
        await asyncio.sleep(0.002)

    async with app:
        jobs = await app.enqueue([limited.call() for _ in range(60)])
        jobs += await app.enqueue([plain.call() for _ in range(60)])
        async with app.worker(concurrency=4):
            await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    half = Counter(order[:60])
    assert min(half["limited"], half["plain"]) >= 20, "neither kind waits for the other's end"


async def test_a_long_line_of_one_tenant_delays_nobody(app):
    order: list[str] = []

    @app.task(queue="fair")
    async def work(ctx: Context) -> None:
        order.append(ctx.tenant)

    async with app:
        await app.queues.configure("fair", fair=True, weights={"gold": 3})
        await app.enqueue([work.using(tenant="big").call() for _ in range(400)])
        await app.enqueue([work.using(tenant="gold/a").call() for _ in range(60)])
        last = await app.enqueue([work.using(tenant="small").call() for _ in range(20)])
        async with app.worker(concurrency=2):
            await asyncio.gather(*(job.result(timeout=60) for job in last))
            while await app.jobs.count(state=State.READY, queue="fair"):
                await asyncio.sleep(0.05)
    places = defaultdict(list)
    for place, tenant in enumerate(order):
        places[tenant].append(place)
    assert places["small"][0] < 12, "the first job of another tenant is among the next"
    assert places["small"][-1] < 110, "equal weights, equal turns: big, small, and three of gold"
    assert places["gold/a"][-1] < 110


async def test_the_backlog_of_a_limit_does_not_slow_others(app, store):
    if store not in ("memory", "sqlite"):
        pytest.skip("figures of servers are taken by the benchmark")

    @app.task(limit=Limit(max_running=1))
    async def blocked() -> None:
        await asyncio.sleep(30)

    @app.task
    async def quick() -> None: ...

    async def takes() -> float:
        began = time.monotonic()
        jobs = await app.enqueue([quick.call() for _ in range(300)])
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
        return time.monotonic() - began

    async with app, app.worker(grace=0):
        alone = min([await takes() for _ in range(3)])
        await app.enqueue([blocked.call() for _ in range(3000)])
        behind = min([await takes() for _ in range(3)])
    assert behind < 5 * alone + 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Limit(), "max_running=, rate="),
        (lambda: Limit(max_running=0), "between 1"),
        (lambda: Limit(max_running=True), "whole number"),
        (lambda: Limit(rate="fast"), "not of the form"),
        (lambda: Limit(rate="10/fortnight"), "not of the form"),
        (lambda: Limit(rate="0/s"), "between 1"),
        (lambda: Limit(rate=(1, 0)), "rate"),
        (lambda: Limit(rate=5), "not 5"),
        (lambda: Limit(max_running=1, per="queue"), "none of"),
    ],
)
def test_bad_limits(make, why):
    with pytest.raises(InvalidCall, match=why):
        make()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_task_of_few_slots_and_no_limit_does_not_narrow_the_question(app):
    """What runs in processes has few slots by itself; jobs under limits are none of its business."""
    asked = []

    @app.task(concurrency=1)
    async def one_at_a_time() -> None: ...

    @app.task(limit=Limit(max_running=10))
    async def limited() -> None: ...

    async with app:
        storage = await app._runtime.storage()
        exchange = storage.exchange

        async def heard(changes, claim=None, started=()):
            asked.extend(want.limit for want in (claim.wants if claim else ()) if want.limited and want.tasks)
            return await exchange(changes, claim, started)

        storage.exchange = heard
        jobs = await app.enqueue([limited.call() for _ in range(40)])
        async with app.worker(concurrency=10):
            await asyncio.gather(*(job.result(timeout=20) for job in jobs))
    assert max(asked) >= 10


async def test_bad_options(app):
    with pytest.raises(InvalidCall, match="takes Limit"):
        app.task(limit="100/s")
    with pytest.raises(InvalidCall, match="takes Limit"):
        app.task(limit=[Limit(max_running=1), "100/s"])
    async with app:
        for wrong in (
            {"weights": {"a": 1}},
            {"fair": True, "weights": {"a": 0}},
            {"fair": True, "weights": {"a/b": 1}},
            {"fair": 1},
        ):
            with pytest.raises(InvalidCall):
                await app.queues.configure("q", **wrong)


async def test_a_single_slot_serves_limited_jobs_and_others_by_turns(app):
    """Neither kind waits until the other has nothing left."""
    meter = Meter()

    @app.task(limit=Limit(max_running=1000))
    async def limited() -> None:
        await meter.run("limited", 0.03)  # so long that none is claimed ahead

    @app.task
    async def other() -> None:
        await meter.run("other", 0.03)
        assert meter.done["limited"] < 10

    async with app:
        jobs = await app.enqueue([*(limited.call() for _ in range(20)), *(other.call() for _ in range(3))])
        async with app.worker(concurrency=1):
            await asyncio.gather(*(job.result(timeout=60) for job in jobs))
