"""The cases: each starts a worker in this process on the store of the app, and gives its figures."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from perdure import Perdure
from perdure.worker.supervisor.runner import tune_collector

from ..spawn import ROOT
from . import tasks
from .plan import Plan
from .tasks import app

Figures = dict[str, float]
SLOTS = 50


async def io(plan: Plan) -> Figures:
    rate, cpu = await _drain(tasks.wait_10_ms.call, plan.io_jobs)
    return {"rate": rate, "share": 100 * rate / (SLOTS / 0.010), "cpu": 1e6 * cpu / plan.io_jobs}


async def cpu(plan: Plan) -> Figures:
    processes, _ = await _drain(lambda: tasks.in_process.call(plan.cpu_seconds), plan.cpu_jobs, warm=4)
    threads, _ = await _drain(lambda: tasks.in_thread.call(plan.cpu_seconds), plan.cpu_jobs, warm=4)
    return {"rate": processes, "threads": threads, "times": processes / threads}


async def pickup(plan: Plan) -> Figures:
    """The enqueues come from another process, which says how fast it really was."""
    async with app, app.worker(concurrency=SLOTS):
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.worker.sender", str(plan.arriving), str(plan.arriving_for)),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert sender.stdout is not None
        await sender.stdout.readline()  # it is connected and begins now
        began, used = time.monotonic(), time.process_time()
        told, _ = await sender.communicate()
        seconds, used = time.monotonic() - began, time.process_time() - used
        sent = json.loads(told)
        await _until(lambda: len(tasks.picked_up) >= sent["jobs"])
    times = sorted(tasks.picked_up)
    return {
        "p50": 1000 * times[len(times) // 2],
        "p99": 1000 * times[min(len(times) - 1, int(len(times) * 0.99))],
        "arrived": sent["jobs"] / sent["seconds"],
        "cpu": 100 * used / seconds,
    }


async def renewals(plan: Plan) -> Figures:
    async with app:
        store = await app._runtime.storage()
        holding = tasks.holding(plan.held_lease)
        await app.enqueue([holding.call() for _ in range(plan.held)])
        async with app.worker(concurrency=plan.held, grace=0) as worker:
            await _until(lambda: worker._control.session.slots.running >= plan.held)
            with _counted(store, "renew") as calls:
                used = time.process_time()
                await asyncio.sleep(plan.held_for)
                used = time.process_time() - used
                lost = plan.held - worker._control.session.slots.running
            renewed = sum(len(asked[0]) for asked, _ in calls)
            took = sum(seconds for _, seconds in calls)
    return {
        "renewed": renewed / plan.held_for,
        "took": 1000 * took * plan.held / renewed,
        "cpu": 100 * used / plan.held_for,
        "lost": lost,
    }


async def idle(plan: Plan) -> Figures:
    async with app:
        store = await app._runtime.storage()
        verbs = (
            *(
                "exchange",
                "renew",
                "check",
                "recover_claim",
                "promote",
                "lapsed",
                "expired",
                "prune",
                "heartbeat",
                "now",
            ),
            *("resolve_edges", "kv_read", "kv_write"),
        )
        async with app.worker(concurrency=SLOTS):
            await asyncio.sleep(1)
            with _counted(store, *verbs) as calls:
                used = time.process_time()
                await asyncio.sleep(plan.idle_for)
                used = time.process_time() - used
    return {"cpu": 100 * used / plan.idle_for, "questions": len(calls) / plan.idle_for}


async def limits(plan: Plan) -> Figures:
    pairs = []
    for _ in range(plan.turns):
        off, _ = await _drain(tasks.nothing.call, plan.drained_jobs)
        on, _ = await _drain(tasks.nothing_under_a_limit.call, plan.drained_jobs)
        pairs.append((off, on))
    narrow, _ = await _drain(tasks.nothing_limited.call, plan.limited_jobs)
    async with app:
        for start in range(0, plan.stuck_jobs, 5_000):
            await app.enqueue([tasks.stuck.call() for _ in range(min(5_000, plan.stuck_jobs - start))])
    beside, _ = await _drain(tasks.nothing_limited.call, plan.limited_jobs, stuck=1)
    return {
        "off": median(off for off, _ in pairs),
        "on": median(on for _, on in pairs),
        "share": 100 * median(on / off for off, on in pairs),
        "narrow": narrow,
        "beside": beside,
    }


async def middleware(plan: Plan) -> Figures:
    turns = []
    for _ in range(plan.turns):
        off, _ = await _drain(tasks.nothing.call, plan.drained_jobs)
        on, _ = await _drain(tasks.nothing.call, plan.drained_jobs, by=tasks.wrapped)
        both, _ = await _drain(tasks.nothing_under_a_limit.call, plan.drained_jobs, by=tasks.wrapped)
        turns.append((off, on, both))
    return {
        "off": median(off for off, _, _ in turns),
        "on": median(on for _, on, _ in turns),
        "share": 100 * median(on / off for off, on, _ in turns),
        "both": median(both for _, _, both in turns),
        "both_share": 100 * median(both / off for off, _, both in turns),
    }


async def fair(plan: Plan) -> Figures:
    large, small = (tasks.of_a_tenant.using(tenant=tenant) for tenant in ("large", "small"))
    async with app:
        await app.queues.configure("fair", fair=True)
        began = time.monotonic()
        for start in range(0, plan.large_tenant, 5_000):
            await app.enqueue([large.call() for _ in range(min(5_000, plan.large_tenant - start))])
        filled = time.monotonic() - began
        before, waited = [], []
        async with app.worker(concurrency=SLOTS, grace=0):
            await _until(lambda: tasks.begun["large"] >= 10 * SLOTS)
            began, worked = time.monotonic(), tasks.begun["large"]
            for number in range(plan.small_jobs):
                called, seen = time.monotonic(), tasks.begun["large"]
                await small.enqueue()
                await _until(lambda wanted=number + 1: tasks.begun["small"] >= wanted)
                before.append(tasks.begun["large"] - seen)
                waited.append(1000 * (time.monotonic() - called))
                await asyncio.sleep(0.1)
            rate = (tasks.begun["large"] - worked) / (time.monotonic() - began)
    return {
        "large": plan.large_tenant,
        "filled": plan.large_tenant / filled,
        "rate": rate,
        "before": median(before),
        "most": max(before),
        "p50": median(waited),
        "longest": max(waited),
    }


CASES: dict[str, Callable[[Plan], Awaitable[Figures]]] = {
    each.__name__: each for each in (io, cpu, pickup, renewals, idle, limits, middleware, fair)
}


# ---- parts ---------------------------------------------------------------------------------------------------------------
async def _drain(
    call: Callable[[], Any], jobs: int, *, warm: int = 0, stuck: int = 0, by: Perdure = app
) -> tuple[float, float]:
    """Jobs a second of a paused queue that is let go, and seconds of this process's CPU. `warm` jobs are run before, so that
    the start of child processes is not counted; so many jobs are `stuck` in their handlers all the time. The worker is
    that of the app `by`."""
    async with app, by, by.worker(concurrency=SLOTS, grace=0) as worker:
        for handle in await app.enqueue([call() for _ in range(warm)]):
            await handle.result(timeout=120)
        await app.queues.pause("default")
        await app.enqueue([call() for _ in range(jobs)])
        held = worker._control.session.held
        await _until(lambda: len(held) == stuck)
        before = held.confirmed
        began, used = time.monotonic(), time.process_time()
        await app.queues.resume("default")
        await _until(lambda: held.confirmed - before >= jobs)
        return jobs / (time.monotonic() - began), time.process_time() - used


async def _until(done: Callable[[], bool], within: float = 600.0) -> None:
    async with asyncio.timeout(within):
        while not done():
            await asyncio.sleep(0.002)


@contextmanager
def _counted(store: Any, *verbs: str) -> Iterator[list[tuple[tuple[Any, ...], float]]]:
    """Note what the store is asked by these verbs, and how long each answer takes."""
    calls: list[tuple[tuple[Any, ...], float]] = []

    def counting(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*asked: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return await real(*asked, **options)
            finally:
                calls.append((asked, time.monotonic() - began))

        return call

    for verb in verbs:
        setattr(store, verb, counting(getattr(store, verb)))
    try:
        yield calls
    finally:
        for verb in verbs:
            delattr(store, verb)


def main() -> None:
    """In a child process: the case and the plan are the arguments, the figures are the last line that is printed."""
    name, plan = sys.argv[1], Plan(**json.loads(sys.argv[2]))
    tune_collector()  # as `perdure worker` does
    print(json.dumps(asyncio.run(CASES[name](plan))))
    sys.stdout.flush()
    os._exit(0)  # what the case leaves behind is of no interest


if __name__ == "__main__":
    main()
