"""The hint for scalers: how deep the queues are, how fast jobs end, how many workers would clear them."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from perdure import InvalidCall
from perdure.core.clock import SECOND
from perdure.observe.scaling_hint import scale
from perdure.storage.contract import Claim, Want, WorkerRow
from perdure.storage.memory.store import MemoryStorage
from perdure.testing.conformance.tools import job
from perdure.worker.health.throughput import Throughput


def told(id: str, *, ended: object = None, **about: object) -> WorkerRow:
    return WorkerRow(id, 0, 0, 0, json.dumps({"concurrency": 10, "queues": None, "ended": ended or {}, **about}))


async def queue_of(store, name: str = "default", target: float = 60):
    return next(queue for queue in (await scale(store, target)).queues if queue.name == name)


async def test_the_arithmetic():
    """600 jobs are due, 2 s each: in 60 s that is 10 a second, so 20 slots; the flow of 1 a second needs 2 more."""
    store = MemoryStorage()
    await store.enqueue([job() for _ in range(600)])
    first = await queue_of(store)
    assert (first.ready, first.rate, first.seconds, first.workers) == (600, 0, None, 1), "nobody has told anything yet"
    await store.heartbeat(told("a", ended={"default": [0.5, 2.0]}))
    await store.heartbeat(told("b", ended={"default": [0.5, 2.0]}))
    seen = await scale(store, 60)
    assert (seen.workers, seen.alive) == (3, 2)
    assert (seen.queues[0].rate, seen.queues[0].seconds, seen.queues[0].workers) == (1.0, 2.0, 3)
    assert (await scale(store, 600)).workers == 1
    assert (await scale(store, 6)).workers == 21


async def test_what_is_not_due_needs_nobody_and_what_runs_keeps_its_worker():
    store = MemoryStorage()
    await store.heartbeat(told("a", ended={"default": [0.0, 5.0], "mail": [0.1, 1.0]}))
    await store.enqueue([job(delay=3600 * SECOND) for _ in range(50)])
    assert (await queue_of(store)).workers == 0
    assert (await queue_of(store, "mail")).workers == 0, "emptied"
    await store.enqueue([job(queue="long") for _ in range(12)])
    await store.claim(Claim("a", 1, (Want(11, ("long",)),)))
    await store.pause("long", True)
    long = await queue_of(store, "long")
    assert (long.paused, long.ready, long.running, long.workers) == (True, 1, 11, 2)


async def test_several_queues_share_workers():
    store = MemoryStorage()
    names = [f"q{number}" for number in range(5)]
    await store.enqueue([job(queue=name) for name in names])
    await store.heartbeat(told("a", ended={name: [0.0, 1.0] for name in names}))
    seen = await scale(store, 60)
    assert [queue.workers for queue in seen.queues] == [1] * 5
    assert seen.workers == 1


async def test_jobs_whose_time_has_come_are_seen_where_no_worker_promotes_them(app):
    async with app:
        store = await app._runtime.storage()
        await store.enqueue([job(delay=1)])
        async with asyncio.timeout(10):
            while (seen := await scale(store)).workers == 0:
                await asyncio.sleep(0.01)
        assert (seen.queues[0].ready, seen.queues[0].workers) == (1, 1)


async def test_rows_of_other_versions_are_read_as_far_as_they_go():
    store = MemoryStorage()
    await store.enqueue([job()])
    for number, about in enumerate(["", "[]", "{}", '{"concurrency": "x", "ended": {"default": ["a", 1], "b": 3}}']):
        await store.heartbeat(WorkerRow(f"w{number}", 0, 0, 0, about))
    seen = await scale(store)
    assert (seen.alive, seen.workers) == (4, 1)
    with pytest.raises(InvalidCall, match="greater than 0"):
        await scale(store, 0)


async def test_a_worker_tells_what_ended_in_it(app, machine):
    @app.task(queue="mail")
    async def send(n: int) -> None:
        await asyncio.sleep(0.05)

    async with app:
        worker = app.worker(poll=0.1, concurrency=4)
        began = time.monotonic()
        async with worker:
            for handle in await app.enqueue([send.call(n) for n in range(8)]):
                await handle.result(timeout=10)
            store = await app._runtime.storage()
            await store.heartbeat(worker._control.session.heartbeat.row())
            seen = await queue_of(store, "mail")
    assert 8 / max(1.0, time.monotonic() - began) <= seen.rate <= 8  # a second, or as long as it took
    assert 0.05 <= seen.seconds < machine.seconds(2)


async def test_the_tally_forgets_what_was_long_ago(monkeypatch):
    class Ended:
        took = 2.0

        class record:
            queue = "default"

    now = [1000.0]
    monkeypatch.setattr("perdure.worker.health.throughput.monotonic", lambda: now[0])
    tally = Throughput()
    assert tally.by_queue() == {}
    tally.count([Ended] * 30)
    now[0] += 10
    assert tally.by_queue() == {"default": (3.0, 2.0)}
    for _ in range(7):
        now[0] += 10
        tally.by_queue()
    assert tally.by_queue() == {"default": (0.0, 2.0)}
