"""The tools for users' own tests."""

import asyncio
import itertools
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from datetime import timedelta

import psycopg
import pytest

from perdure import HoldLost, InvalidCall, Limit, Perdure, Retention, State, StoreError
from perdure.storage.memory.rows import Rows
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock, assert_enqueued, drain, refute_enqueued, swap
from perdure.testing.plugin import perdure_clock, perdure_memory, perdure_postgresql, perdure_sqlite
from tests.support.real_servers import server

# the plugin's, also where it is not installed
FIXTURES = (perdure_clock, perdure_memory, perdure_postgresql, perdure_sqlite)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def app(clock):
    return Perdure("memory://", clock=clock, max_attempts=2)


@pytest.fixture
def task(app):
    @app.task
    async def task(a: int, b: str = "") -> int:
        if b == "more":
            await task.enqueue(a + 1)
        if b == "fail":
            raise ValueError
        return a

    return task


async def test_drain_runs_what_is_due_and_what_comes_of_it(app, task, clock):
    first = await task.enqueue(1, "more")
    later = await task.using(delay=60).enqueue(2)
    await task.using(queue="paused").enqueue(3)
    await app.queues.pause("paused")
    failing = await task.enqueue(4, "fail")
    await drain(app)
    assert (await first.refresh()).state is State.SUCCEEDED
    assert (await later.refresh()).state is State.SCHEDULED
    assert (await failing.refresh()).state is State.SCHEDULED
    assert await app.jobs.count(state=State.SUCCEEDED) == 2
    assert await app.jobs.count(state=State.READY) == 1
    clock.advance(timedelta(seconds=61))
    await drain(app)
    assert (await later.refresh()).state is State.SUCCEEDED
    assert (await failing.refresh()).state is State.DEAD


async def test_drain_removes_what_is_no_longer_kept(app, task, clock):
    counted = task.using(retention=Retention.keep(last=2))
    await app.enqueue([counted.call(number) for number in range(5)])
    await drain(app)
    assert await app.jobs.count() == 2
    await task.enqueue(1)
    await drain(app)
    clock.advance(timedelta(days=8))
    await drain(app)
    (last,) = (await app.jobs.find()).items  # the last two of the task were this one and the job of eight days ago
    assert last.payload in ('{"a":3}', '{"a":4}')


async def test_drain_cancels_what_was_not_started_in_time(app, task, clock):
    parent = await task.using(delay=3600).enqueue(0)
    soon = task.using(expires=60)
    jobs = [
        await soon.using(delay=59).enqueue(1),
        await soon.using(after=[parent]).enqueue(2),
        await soon.using(queue="paused").enqueue(3),
    ]
    await app.queues.pause("paused")
    clock.advance(61)
    await drain(app)
    assert {(job.state, job.reason) for job in [await job.refresh() for job in jobs]} == {(State.CANCELLED, "expired")}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/jobs.db"])
async def test_drain_brings_back_what_is_held_by_nobody_alive(url, clock, tmp_path):
    app = Perdure(url.format(folder=tmp_path), clock=clock)

    @app.task
    async def task() -> str:
        clock.advance(3600)  # the lease of this very job is over, too, and its worker is alive
        await asyncio.sleep(0.1)
        return "done"

    async with app:
        job = await task.enqueue()
        async with app.claim(tasks=[task]) as [item]:
            clock.advance(59)
            await drain_for_a_moment(app)
            assert (await job.refresh()).attempt == 1
            clock.advance(1)
            await drain(app)
            assert (await job.refresh()).attempt == 2
            assert await job.result() == "done"
            with pytest.raises(HoldLost):
                await item.succeed("too late")


async def drain_for_a_moment(app):
    with suppress(TimeoutError):  # a job that somebody holds is waited for
        await drain(app, timeout=0.3)


async def test_drain_waits_for_a_job_that_is_claimed_while_it_looks(app, monkeypatch):
    looked, begun = asyncio.Event(), asyncio.Event()
    storage = await app._runtime.storage()
    count, exchange = storage.count, storage.exchange

    async def counted(filter):
        found = await count(filter)
        if filter.states == (State.RUNNING,) and not looked.is_set():
            assert found == 0
            looked.set()
            await begun.wait()
        return found

    async def exchanged(*asked):
        await looked.wait()
        return await exchange(*asked)

    async def queues():
        return []  # as stores that list those with a setting, or where something waits

    @app.task
    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.1)
        return "whole"

    monkeypatch.setattr(storage, "count", counted)
    monkeypatch.setattr(storage, "exchange", exchanged)
    monkeypatch.setattr(storage, "queues", queues)
    job = await slow.enqueue()
    await drain(app)
    assert (await job.refresh()).result == "whole"


async def test_drain_gives_up_in_time(app):
    @app.task
    async def endless():
        await asyncio.sleep(60)

    await endless.enqueue()
    with pytest.raises(TimeoutError):
        await drain(app, timeout=0.05)


def test_drain_in_a_plain_test(app, task):
    job = task.sync.enqueue(1)
    drain(app)
    assert job.sync.result(timeout=30) == 1


async def test_what_was_enqueued(app, task):
    await refute_enqueued(app, task)
    await task.using(queue="mail", tags=["x", "y"], tenant="acme").enqueue(1, b="x")
    (job,) = await assert_enqueued(app, task)
    assert job.payload == '{"a":1,"b":"x"}'
    await assert_enqueued(app, task, 1)
    await assert_enqueued(app, task, b="x")
    await assert_enqueued(app, "task", a=1)
    await assert_enqueued(app, task.using(queue="mail", tags=["x"], tenant="acme"), 1, "x")
    await refute_enqueued(app, task, 2)
    await refute_enqueued(app, task.using(queue="other"))
    with pytest.raises(AssertionError, match=r"no job was enqueued that fits task\(2\).*\n.*queue=mail"):
        await assert_enqueued(app, task, 2)
    with pytest.raises(AssertionError, match="a job was enqueued"):
        await refute_enqueued(app, task)


async def test_what_was_left_to_its_default_was_enqueued_too(app, task):
    await task.enqueue(1)
    await assert_enqueued(app, task, 1, "")
    await assert_enqueued(app, "task", b="")
    await refute_enqueued(app, task, 1, "x")
    with pytest.raises(AssertionError):
        await refute_enqueued(app, task, b="")


async def test_options_by_any_name_are_found_among_others(app):
    @app.task
    async def send(to: str, **headers: str) -> None: ...

    await send.enqueue("a", x="1", y="2")
    await assert_enqueued(app, send, "a", x="1")
    await assert_enqueued(app, send, x="1", y="2")
    await refute_enqueued(app, send, x="2")
    await refute_enqueued(app, send, z="1")


async def test_arguments_that_a_task_does_not_take_are_told(app, task):
    for args, kwargs in (((1, "x", 3), {}), ((), {"c": 1})):
        for look in (assert_enqueued, refute_enqueued):
            with pytest.raises(InvalidCall, match=r"^task: .*; it takes task\("):
                await look(app, task, *args, **kwargs)


def test_what_was_enqueued_in_a_plain_test(app, task):
    refute_enqueued(app, task)
    task.sync.enqueue(1)
    assert_enqueued(app, task, 1)


@pytest.mark.parametrize("plain", [False, True])
async def test_swap(tmp_path, plain):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def task(): ...

    await task.enqueue()
    swapped = swap(app, "memory://")
    if plain:
        with swapped as given:
            assert given is app
            assert await app.jobs.count() == 0
            await task.enqueue()
            await task.enqueue()
            assert await app.jobs.count() == 2
    else:
        async with swapped as given:
            assert given is app
            assert await app.jobs.count() == 0
            await task.enqueue()
    assert await app.jobs.count() == 1
    await app.close()


def test_the_fixtures(perdure_memory, perdure_clock, tmp_path):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def task(): ...

    assert perdure_memory(app) is app
    job = task.using(delay=60).sync.enqueue()
    assert job.sync.refresh().created_at == perdure_clock.now()
    assert not (tmp_path / "jobs.db").exists()
    perdure_clock.advance(60)
    drain(app)
    assert job.sync.refresh().state is State.SUCCEEDED


def test_the_plugin_costs_nothing_at_load():
    code = (
        "import sys, pytest; before = set(sys.modules); import perdure.testing.plugin; "
        "sys.exit(len([name for name in set(sys.modules) - before if 'perdure' not in name]) > 3 or "
        "'perdure.app' in sys.modules or 'msgspec' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_swap_checks_its_url(app):
    with pytest.raises(StoreError, match="unknown store"):
        async with swap(app, "nosuch://"):
            await app.jobs.count()
    with pytest.raises(InvalidCall):
        swap(app, "memory://", clock=5)


async def test_drain_sees_followers_that_are_let_go_a_moment_later(app, task, monkeypatch):
    """As on PostgreSQL: the end of a job is seen by all before its followers are."""
    looked, looks = asyncio.Event(), itertools.count()  # in vain
    exchange, count = MemoryStorage.exchange, MemoryStorage.count

    async def late(self, changes, *others):
        with monkeypatch.context() as patch:
            patch.setattr(Rows, "resolve_edges", lambda *_: 0)
            answer = await exchange(self, changes, *others)
        if changes:
            with suppress(TimeoutError):
                await asyncio.wait_for(looked.wait(), 1)
            await self.resolve_edges(self.chunk)
        return answer

    async def seen(self, filter):
        found = await count(self, filter)
        if not found and next(looks) == 3:
            looked.set()
        return found

    first = await task.enqueue(1)
    second = await task.using(after=[first]).enqueue(2)
    monkeypatch.setattr(MemoryStorage, "exchange", late)
    monkeypatch.setattr(MemoryStorage, "count", seen)
    await drain(app)
    assert (await app.jobs.get(second.id)).state is State.SUCCEEDED


async def test_drain_sees_followers_that_are_let_go_while_it_looks(app, task, monkeypatch):
    parent = await task.using(delay=3600).enqueue(1)
    child = await task.using(after=[parent]).enqueue(2)
    count = MemoryStorage.count

    async def then_let_go(store, wanted):
        counted = await count(store, wanted)
        if State.READY in wanted.states and (await parent.refresh()).state is State.SCHEDULED:
            await app.jobs.complete(parent.id)
        return counted

    monkeypatch.setattr(MemoryStorage, "count", then_let_go)
    await drain(app)
    assert (await child.refresh()).state is State.SUCCEEDED


async def test_drain_leaves_what_a_rate_holds_back():
    clock = ManualClock()
    app = Perdure("memory://", clock=clock)
    ran = []

    @app.task(limit=Limit(rate="2/min"))
    async def paced(number: int) -> None:
        ran.append(number)

    async with app:
        await app.enqueue([paced.call(number) for number in range(5)])
        await drain(app)
        assert ran == [0, 1]
        clock.advance(60)
        await drain(app)
        assert ran == [0, 1, 2, 3]


def test_a_file_of_its_own_for_code_with_a_connection(perdure_sqlite, perdure_clock, tmp_path):
    app = Perdure("memory://")
    ran = []

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    path = tmp_path / "shop 1.db"
    assert perdure_sqlite(app, path) is app
    assert app.jobs.sync.count() == 0
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            note.using(connection=connection, delay=60).sync.enqueue(1)
        drain(app)
        assert ran == []
        perdure_clock.advance(60)
        drain(app)
    assert ran == [1]


@pytest.fixture
def _a_postgresql(monkeypatch):
    monkeypatch.setenv("PERDURE_TEST_POSTGRESQL", server("postgres").url)


@pytest.mark.usefixtures("_a_postgresql")
def test_a_schema_of_its_own_for_code_with_a_connection(perdure_postgresql):
    app = Perdure("memory://")
    ran = []

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    assert perdure_postgresql(app) is app
    assert app.jobs.sync.count() == 0
    with psycopg.connect(server("postgres").url) as connection:
        note.using(connection=connection).sync.enqueue(1)
        connection.commit()
    drain(app)
    assert ran == [1]
