"""Kills on both sides, servers that go away, queues without room, rows that hold no job, jobs that a store refuses."""

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import servers
from perdure import Perdure, StoreError
from perdure.outbox.delivery import Delivery, Parcel
from perdure.storage.contract import QueueAtCapacity
from perdure.storage.memory.store import MemoryStorage
from tests.support.real_servers import decline
from tests.support.waiting import eventually

from .program import POINTS
from .scene import Scene, add_task
from .test_order import claimed, jobs_of

ROOT = Path(__file__).resolve().parents[3]


# ---- kills -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("pair", [("sqlite", "valkey"), ("postgres", "sqlite")], ids="-to-".join)
async def test_a_relay_that_is_killed_loses_nothing_and_nothing_runs_twice(tmp_path, pair, point):
    scene = Scene(tmp_path, *pair)
    ran = Counter()

    @scene.app.task
    async def note(number: int) -> None:
        ran[number] += 1

    async with scene.app as app:
        await scene.open_outbox()
        for number in range(3):
            with scene.transaction() as database:
                await app.enqueue([note.call(10 * number + each) for each in range(5)], connection=database)
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.system.outbox.program", scene.outbox, scene.target, point],
            cwd=ROOT,
            timeout=60,
        )
        assert killed.returncode == -9
        # whatever reached the store runs and ends before the next relay comes
        before = Perdure(scene.target)
        before.include(app)
        async with before, before.worker(poll=0.05):
            await eventually(lambda: nothing_waits(before))
        async with app.worker(poll=0.05):
            await eventually(lambda: all_done(app, 15))
        assert scene.rows() == []
    assert ran == {10 * number + each: 1 for number in range(3) for each in range(5)}


async def nothing_waits(app):
    return await app.jobs.count(state=["ready", "running"]) == 0


async def all_done(app, count):
    return await app.jobs.count(state="succeeded") == count


async def test_a_store_that_is_killed_again_and_again_gets_every_job_once(tmp_path):
    try:
        target = servers.start("postgres", durable=True)
    except servers.NotAvailable as missing:
        decline("postgres", missing)
    with target:
        app = Perdure(target.fresh(), outbox=f"sqlite:///{tmp_path}/shop.db")
        scene = Scene.__new__(Scene)
        scene.kind, scene.outbox, scene.app = "sqlite", f"sqlite:///{tmp_path}/shop.db", app
        task = add_task(app)
        stopping = asyncio.Event()
        async with app:
            outbox = await scene.open_outbox()
            running = asyncio.create_task(app._runtime.relay().run(stopping))
            for number in range(3):
                with scene.transaction() as database:
                    await app._runtime.client.enqueue_in_transaction(
                        database, jobs_of(task, range(200 * number, 200 * number + 200))
                    )
                await asyncio.to_thread(target.kill)
                with scene.transaction() as database:  # nobody notices
                    await app._runtime.client.enqueue_in_transaction(database, jobs_of(task, [600 + number]))
                await asyncio.to_thread(target.restart)
            await eventually(lambda: empty(outbox), 60)
            stopping.set()
            await running
            seen = await claimed(await app._runtime.storage(), 1000)
        assert sorted(seen) == list(range(603))


async def empty(outbox):
    return (await outbox.state()).waiting == 0


# ---- outages ---------------------------------------------------------------------------------------
async def test_an_outbox_that_is_out_of_reach_is_waited_for_with_one_line_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO, "perdure")
    try:
        near = servers.start("postgres")
    except servers.NotAvailable as missing:
        decline("postgres", missing)
    with near:
        import psycopg

        app = Perdure("memory://", outbox=near.fresh())
        task = add_task(app)
        async with app, app.worker(poll=0.05):
            await (await app._runtime.loops.outboxes.get()).state()
            await asyncio.to_thread(near.kill)
            assert await (await task.enqueue("from the store alone")).result(timeout=20) == "from the store alone"
            await eventually(lambda: told(caplog, "relay: "))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(near.restart)
            with psycopg.connect(near.url) as database:
                job = await task.using(connection=database).enqueue("after all")
            assert await job.result(timeout=40) == "after all"
        assert len([line for line in caplog.messages if line.startswith("relay: ") and "tries again" in line]) == 1
        assert len([line for line in caplog.messages if "works again" in line]) == 1


async def told(caplog, beginning):
    return any(line.startswith(beginning) for line in caplog.messages)


# ---- queues without room ---------------------------------------------------------------------------
async def test_jobs_of_a_full_queue_wait_and_the_others_go_on(scene):
    async with scene.app as app:
        await app.queues.configure("mail", max_depth=3)
        await scene.open_outbox()
        with scene.transaction() as database:
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(scene.task, range(10), queue="mail"))
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(scene.task, range(100, 105)))
        relay = app._runtime.relay()
        await relay.once()
        assert await app.jobs.count(queue="mail") == 3
        assert await app.jobs.count(queue="default") == 5
        assert len(scene.rows()) == 7
        await app.queues.configure("mail", max_depth=8)
        relay._full.clear()  # the second is over
        await relay.once()
        assert await app.jobs.count(queue="mail") == 8
        await app.queues.configure("mail", max_depth=None)
        relay._full.clear()
        await relay.once()
        assert scene.rows() == []
        seen = await claimed(await app._runtime.storage())
        assert [number for number in seen if number < 100] == list(range(10))


async def test_a_full_queue_with_many_waiting_rows_does_not_stand_in_the_way(near):
    async with near.app as app:
        await app.queues.configure("mail", max_depth=1)
        await near.open_outbox()
        with near.transaction() as database:
            for start in range(0, 600, 300):
                await app._runtime.client.enqueue_in_transaction(
                    database, jobs_of(near.task, range(start, start + 300), queue="mail")
                )
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, [1000]))
        await app._runtime.relay().once()
        assert await app.jobs.count(queue="default") == 1
        assert len(near.rows()) == 599


# ---- rows and jobs that cannot be moved ------------------------------------------------------------
@pytest.mark.parametrize(
    "text", ["", "no json", "{}", '{"id": 5}', "[]", "null", '{"id":"x","task":"t","payload":"[]"}']
)
async def test_a_row_that_holds_no_job_is_set_aside_and_the_others_go_on(near, text, caplog):
    async with near.app as app:
        outbox = await near.open_outbox()
        near.poison(text)
        with near.transaction() as database:
            job = await near.task.using(connection=database).enqueue()
        relay = app._runtime.relay()
        await relay.once()
        assert (await job.refresh()).state == "ready"
        standing = await outbox.state()
        assert (standing.waiting, standing.oldest, standing.aside) == (0, None, 1)
        (aside,) = await outbox.list_aside(10)
        assert aside.id == "x"
        assert "it holds no job" in aside.error
        assert "was set aside" in caplog.text
        assert await outbox.bring_back() == 1
        assert (await outbox.state()).waiting == 1
        await relay.once()
        assert (await outbox.state()).aside == 1


async def test_rows_of_a_newer_version_are_left_to_it(near):
    async with near.app as app:
        outbox = await near.open_outbox()
        near.poison("written by rules that nobody here knows")
        with near.transaction() as database:
            database.execute(f"update {near.table} set min_version = 99")
        await app._runtime.relay().once()
        standing = await outbox.state()
        assert (standing.waiting, standing.aside) == (1, 0)
        assert standing.oldest > 0


class Choosy(MemoryStorage):
    """A store that refuses some jobs, or all."""

    refuses = staticmethod(lambda job: False)

    async def enqueue(self, jobs):
        if any(self.refuses(job) for job in jobs):
            raise StoreError("too large for this store")
        return await super().enqueue(jobs)


async def test_a_job_that_the_store_refuses_is_set_aside_when_others_are_accepted(near):
    store = Choosy()
    store.refuses = lambda job: job.payload == "[3]"
    near.app._runtime.loops._open_store = lambda: store
    async with near.app as app:
        outbox = await near.open_outbox()
        with near.transaction() as database:
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, range(6), key="k"))
        relay = app._runtime.relay()
        await relay.once()
        (aside,) = await outbox.list_aside(10)
        assert "too large for this store" in aside.error
        store.refuses = lambda job: False
        await outbox.bring_back()
        await relay.once()
        # those of its key waited until it was known
        assert await claimed(store) == [0, 1, 2, 4, 5, 3]


async def test_when_the_store_refuses_everything_nothing_is_set_aside(near):
    store = Choosy()
    store.refuses = lambda job: True
    near.app._runtime.loops._open_store = lambda: store
    async with near.app as app:
        await near.open_outbox()
        with near.transaction() as database:
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, range(6)))
        with pytest.raises(StoreError, match="too large"):
            await app._runtime.relay().once()
        assert len(near.rows("number", "set_aside_at is null")) == 6
        store.refuses = lambda job: False
        await app._runtime.relay().once()
        assert await claimed(store) == list(range(6))


class Moody(MemoryStorage):
    """A store whose every third answer is trouble, after or before it has stored the jobs."""

    calls = 0

    async def enqueue(self, jobs):
        self.calls += 1
        if self.calls % 3 == 1:
            raise ConnectionError("gone")
        placed = await super().enqueue(jobs)
        if self.calls % 3 == 2:
            raise ConnectionError("gone, after all was stored")
        return placed


async def test_an_answer_that_was_lost_is_repeated_until_it_is_heard():
    store = Moody()
    app = Perdure("memory://")
    parcels = [Parcel(number, job) for number, job in enumerate(jobs_of(add_task(app), range(5)))]
    moved = []
    while len(moved) < 5:
        delivery = Delivery(store)
        await delivery.deliver([parcel for parcel in parcels if parcel.number not in moved])
        moved += delivery.moved
        assert delivery.moved or isinstance(delivery.error, ConnectionError)
    assert await claimed(store) == list(range(5))


async def test_room_is_filled_to_the_last_place():
    class Narrow(MemoryStorage):
        room = 13

        async def enqueue(self, jobs):
            if len(jobs) > self.room:
                raise QueueAtCapacity("default", 13, waits=False)
            self.room -= len(jobs)
            return await super().enqueue(jobs)

    store = Narrow()
    delivery = Delivery(store)
    app = Perdure("memory://")
    await delivery.deliver([Parcel(number, job) for number, job in enumerate(jobs_of(add_task(app), range(40)))])
    assert delivery.moved == list(range(13))
    assert delivery.full == {"default"}
    assert delivery.error is None
