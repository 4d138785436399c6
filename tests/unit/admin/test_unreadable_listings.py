"""One unreadable row among good ones: every listing gives the others, marks the bad one, and raises only our own errors."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import pytest

from perdure import Context, Perdure, State
from perdure.core.record import unreadable_fields
from perdure.errors import PerdureError, StoreError
from perdure.flow.steps import UNDO, name_of
from perdure.schedules.firing import fire
from perdure.storage.contract import JobDump, KvEntry, QueueSettings, WorkerRow
from tests.support.addresses import NAMES, OF_EACH_KIND, address

STORES = [name for name in NAMES if name in ("memory", "sqlite", "sqlite+apsw", *OF_EACH_KIND)]
pytestmark = pytest.mark.parametrize("store", STORES)


@asynccontextmanager
async def opened(store, folder):
    """An app with a task on an empty store."""
    app = Perdure(address(store, folder))

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app:
        yield app, add, await app._runtime.storage()


async def spoil(storage, id, **flaws):
    """Change fields of a stored job to values that no verb would write."""
    (carried,) = [each for each in await storage.export(None, 1000) if each.record.id == str(id)]
    record = msgspec.structs.replace(carried.record, **flaws)
    await storage.restore([JobDump(record, carried.lines, carried.waits_for, carried.kept_for)])


async def test_jobs_are_listed_and_counted(store, tmp_path):
    async with opened(store, tmp_path) as (app, add, storage):
        jobs = [await add.using(key="k").enqueue(1, number) for number in range(5)]
        await spoil(storage, jobs[2].id, errors="broken", tags="broken")
        page = await app.jobs.find(key="k")
        assert [job.id for job in page.items] == [job.id for job in reversed(jobs)]
        assert [unreadable_fields(job.reason) for job in page.items] == [(), (), ("errors", "tags"), (), ()]
        found = await app.jobs.get(jobs[2].id)
        assert (found.state, unreadable_fields(found.reason)) == (State.READY, ("errors", "tags"))
        assert await app.jobs.count() == 5


async def test_pages_of_one_go_over_it_and_end(store, tmp_path):
    """A cursor that points to the bad row leads on: no page is repeated, none is skipped."""
    async with opened(store, tmp_path) as (app, add, storage):
        jobs = [await add.enqueue(1, number) for number in range(5)]
        for bad in (0, 2, 4):
            await spoil(storage, jobs[bad].id, errors="broken")
        for filter in ({}, {"state": State.READY}, {"task": add.name}, {"queue": "default"}):
            seen, cursor = [], None
            for _ in range(9):
                page = await app.jobs.find(limit=1, cursor=cursor, **filter)
                seen += [job.id for job in page.items]
                cursor = page.cursor
                if cursor is None:
                    break
            assert (cursor, seen) == (None, [job.id for job in reversed(jobs)]), filter


async def test_dead_letters_are_listed_retried_and_exported(store, tmp_path):
    async with opened(store, tmp_path) as (app, add, storage):
        jobs = [await add.enqueue(1, number) for number in range(3)]
        for job in jobs:
            await spoil(storage, job.id, state=State.DEAD, finished_at=await storage.now())
        await spoil(storage, jobs[1].id, payload="{", errors="broken")
        for _ in range(3):
            await storage.inspect(100)
        page = await app.dead.find()
        assert [unreadable_fields(job.reason) for job in page.items] == [(), ("payload", "errors"), ()]
        assert await app.dead.export(tmp_path / "letters.jsonl") == 3
        lines = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
        told = {line["id"]: line.get("unreadable") for line in lines}
        assert told[str(jobs[1].id)]["fields"] == ["payload", "errors"]
        assert [told[str(jobs[number].id)] for number in (0, 2)] == [None, None]
        assert await app.dead.retry_all() == 2, "the one that lost its payload stays"
        assert [job.id for job in (await app.dead.find()).items] == [jobs[1].id]


async def test_queues_are_listed(store, tmp_path):
    async with opened(store, tmp_path) as (app, _, storage):
        for name in ("a", "b", "c"):
            await app.queues.configure(name, fair=True, weights={"t": 2.0})
        await storage.configure(QueueSettings("b", fair=True, weights="broken"))
        assert [(queue.name, dict(queue.weights)) for queue in await app.queues.list()] == [
            ("a", {"t": 2.0}),
            ("b", {}),
            ("c", {"t": 2.0}),
        ]


async def test_workers_are_listed(store, tmp_path):
    async with opened(store, tmp_path) as (app, _, storage):
        now = await storage.now()
        for name, about in (("a", "{}"), ("b", "broken"), ("c", "[]"), ("d", "{}")):
            await storage.heartbeat(WorkerRow(name, now, now, 0, about))
        assert [worker.id for worker in await app.workers.list()] == ["a", "b", "c", "d"]


async def test_a_worker_that_cannot_be_read_stops_no_schedule(store, tmp_path):
    async with opened(store, tmp_path) as (app, add, storage):
        now = await storage.now()
        await app.schedules.put("often", "* * * * * *", add.call(1, 2))
        (row,) = await storage.kv_read("schedule", ["often"])
        schedule = {**json.loads(row.text), "declared": "in code"}
        await storage.restore_kv([KvEntry(row.kind, row.name, json.dumps(schedule), row.version, now)])
        for name, about in (("a", "broken"), ("b", "[]"), ("c", '{"tasks":["add"]}')):
            await storage.heartbeat(WorkerRow(name, now, now, 0, about))
        await fire(storage, schedule["next"], known=())
        assert await app.jobs.count() == 1


@pytest.mark.parametrize("text", ["broken", "[]", '{"cron":1}', '{"cron":"* * * * *"}'])
async def test_schedules_are_listed(store, tmp_path, text):
    async with opened(store, tmp_path) as (app, add, storage):
        for name in ("a", "b", "c"):
            await app.schedules.put(name, "0 3 * * *", add.call(1, 2))
        await storage.restore_kv([KvEntry("schedule", "b", text, 7, await storage.now())])
        listed = await app.schedules.list()
        assert [(each.name, each.cron, each.unreadable) for each in listed] == [
            ("a", "0 3 * * *", False),
            ("b", "", True),
            ("c", "0 3 * * *", False),
        ]
        for verb in (app.schedules.pause, app.schedules.resume, app.schedules.run_now, app.schedules.preview):
            with pytest.raises(StoreError, match="schedule 'b' cannot be read"):
                await verb("b")
        with pytest.raises(StoreError, match="schedule 'b' cannot be read"):
            await app.schedules.reschedule("b", "0 4 * * *")
        await app.schedules.put("b", "0 4 * * *", add.call(1, 2))
        assert [each.cron for each in await app.schedules.list()] == ["0 3 * * *", "0 4 * * *", "0 3 * * *"]
        await storage.restore_kv([KvEntry("schedule", "b", text, 9)])
        await app.schedules.remove("b")
        assert [each.name for each in await app.schedules.list()] == ["a", "c"]


async def test_one_bad_schedule_stops_no_other(store, tmp_path):
    async with opened(store, tmp_path) as (app, add, storage):
        for name in ("a", "b", "c"):
            await app.schedules.put(name, "* * * * * *", add.call(1, 2))
        (row,) = await storage.kv_read("schedule", ["b"])
        schedule = json.loads(row.text)
        schedule["job"]["meta"] = "broken"
        await storage.restore_kv([KvEntry(row.kind, "b", json.dumps(schedule), row.version, row.due_at)])
        clock = schedule["next"] + 2_000_000
        while await storage.now() <= clock:
            await asyncio.sleep(0.05)
        await fire(storage, clock, known=("add",))
        assert await app.jobs.count() >= 2


async def test_a_subscription_that_cannot_be_read_stops_no_event(store, tmp_path):
    async with opened(store, tmp_path) as (app, _, storage):

        @app.subscribe("sold")
        @app.task
        async def count(event: int) -> None: ...

        await app.publish("sold", 1)
        bad = [KvEntry("subscription", name, "broken") for name in ("nothing", "sold\x1fother\x1f")]
        await storage.restore_kv(bad)
        app._runtime.client.publisher.forget()
        assert len(await app.publish("sold", 2)) == 1
        assert await app.jobs.count(task=count.name) == 2


async def test_a_call_to_undo_that_cannot_be_read_stops_no_death(store, tmp_path):
    """A job whose kept calls cannot be read dies all the same, and the readable ones are enqueued."""
    async with opened(store, tmp_path) as (app, add, storage):

        @app.task(max_attempts=1)
        async def fails(ctx: Context) -> None:
            ctx.on_dead(add.call(1, 2))
            raise RuntimeError("no")

        job = await fails.enqueue()
        name = name_of(str(job.id), "spoiled")
        await storage.restore_kv([KvEntry(UNDO, name, "broken", 1, None, str(job.id))])
        async with app.worker(concurrency=1, poll=0.05):
            with pytest.raises(PerdureError):
                await job.result(timeout=20)
        assert (await app.jobs.get(job.id)).state is State.DEAD
        assert await app.jobs.count(task=add.name) == 1
