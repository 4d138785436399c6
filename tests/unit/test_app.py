"""The app's life, and its ways of putting jobs on record."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import perdure
from perdure import InvalidCall, Perdure, QueueFull, State, StoreError, Thresholds
from perdure.core.record import NewJob
from perdure.storage.contract import QueueAtCapacity
from perdure.storage.memory.store import MemoryStorage
from tests.support.waiting import eventually, stays


class Watched(MemoryStorage):
    """A memory store that notes its enqueues, and fails or waits as told."""

    def __init__(self):
        super().__init__()
        self.batches: list[int] = []
        self.opened = self.closed = 0
        self.gate: asyncio.Event | None = None
        self.fail = lambda jobs: None

    async def open(self):
        self.opened += 1
        await asyncio.sleep(0)

    async def close(self):
        self.closed += 1

    async def enqueue(self, jobs):
        self.batches.append(len(jobs))
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        self.fail(jobs)
        return await super().enqueue(jobs)


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def app(store):
    app = Perdure("memory://")
    app._runtime.loops._open_store = lambda: store
    return app


@pytest.fixture
def task(app):
    @app.task
    async def task(a: int = 0) -> int:
        return a

    return task


# ---- life ------------------------------------------------------------------------------------------
def test_every_public_name_is_there():
    for name in perdure.__all__:
        assert getattr(perdure, name).__doc__ or name == "ANY"
    assert set(perdure.__all__) <= set(dir(perdure))
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = perdure.nothing_such


def test_importing_is_quick_and_light():
    code = (
        "import sys, perdure; "
        "assert 'msgspec' not in sys.modules and 'asyncio' not in sys.modules and 'sqlite3' not in sys.modules; "
        "from perdure import Perdure; Perdure(); "
        "assert not {'sqlite3', 'click', 'cronsim', 'apsw', 'sqlalchemy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "options",
    [
        dict(imports="shop.tasks"),
        dict(imports=5),
        dict(migrate="no"),
        dict(durability="some"),
        dict(outbox="redis://localhost"),
        dict(outbox=5),
        dict(clock=5),
        dict(thresholds=5),
        dict(max_bytes=0),
        dict(max_bytes=5 << 20),
        dict(colour="red"),
    ],
    ids=str,
)
def test_bad_options_of_an_app_are_refused(options):
    with pytest.raises(InvalidCall):
        Perdure("memory://", **options)
    with pytest.raises(InvalidCall):
        Perdure(5)


def test_settings_are_kept():
    app = Perdure("memory://", imports=["a.b"], thresholds=Thresholds(depth=5), durability="full", migrate=False)
    assert app.imports == ("a.b",)
    assert app.settings.thresholds.depth == 5
    assert app.clock is None


def test_the_url_comes_from_the_environment(monkeypatch):
    assert Perdure("memory://x").url == "memory://x"
    monkeypatch.setenv("PERDURE_URL", "sqlite:///else.db")
    assert Perdure().url == "sqlite:///else.db"
    assert Perdure("").url == ""  # given, and refused when it is used
    monkeypatch.delenv("PERDURE_URL")
    assert Perdure().url == "sqlite:///perdure.db"


async def test_nothing_opens_before_the_first_verb_and_then_once(app, store, task):
    task.call(1)
    assert store.opened == 0
    await asyncio.gather(*(app.jobs.count() for _ in range(20)))
    assert store.opened == 1
    await app.close()
    assert store.closed == 1
    await app.jobs.count()
    assert store.opened == 2
    async with app:
        pass
    assert store.closed == 2


async def test_a_caller_who_gives_up_does_not_close_the_door_for_others(app, store):
    first = asyncio.create_task(app.jobs.count())
    second = asyncio.create_task(app.jobs.count())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 0
    assert store.opened == 1


async def test_a_store_that_cannot_be_opened_says_so_each_time(app):
    class Broken(MemoryStorage):
        async def open(self):
            raise OSError("no such disk")

    app._runtime.loops._open_store = Broken
    for _ in range(2):
        with pytest.raises(StoreError, match="memory store cannot be opened: no such disk"):
            await app.jobs.count()


def test_a_store_is_closed_with_its_loop(app, store):
    async def main():
        await app.jobs.count()

    asyncio.run(main())
    assert (store.opened, store.closed) == (1, 1)
    asyncio.run(main())
    assert (store.opened, store.closed) == (2, 2)
    assert not app._runtime.loops._places


def test_each_loop_has_its_own_store_and_memory_is_shared(task, app, store):
    async def main():
        await task.enqueue(1)
        await asyncio.to_thread(task.sync.enqueue, 2)
        return await app.jobs.count()

    assert asyncio.run(main()) == 2
    assert store.opened == 2
    app.sync.close()
    assert store.closed == 2
    assert app.jobs.sync.count() == 2


def test_an_enqueue_under_way_keeps_its_store_when_the_app_is_closed(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def task(number: int) -> None: ...

    ended, done = threading.Event(), [0] * 4

    def thread(which):
        while not ended.is_set():
            task.sync.enqueue(which)
            app.sync.enqueue([task.call(which), task.call(which)])
            done[which] += 3

    async def main():
        async with app:
            await task.enqueue(0)

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(thread, which) for which in range(4)]
        for _ in range(20):
            asyncio.run(main())
        ended.set()
    assert [each.exception() for each in running] == [None] * 4
    assert app.jobs.sync.count() == sum(done) + 20
    app.sync.close()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:"])
def test_the_first_verbs_of_several_threads_meet_in_one_store(url):
    for _ in range(10):
        app = Perdure(url)

        @app.task
        async def task(number: int) -> None: ...

        together = threading.Barrier(6)

        async def main(number, task=task):
            await task.enqueue(number)

        def thread(number, together=together, main=main):
            together.wait()
            asyncio.run(main(number))

        threads = [threading.Thread(target=thread, args=[number]) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert app.jobs.sync.count() == 6
        app.sync.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own(app, store, task):
    task.sync.enqueue(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            count = app.jobs.sync.count()
            os.write(write, f"{count} {store.opened} {store.closed}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"1 2 0"
    assert app.jobs.sync.count() == 1


def test_at_exit_everything_is_closed_in_peace():
    code = """
import asyncio
from perdure import Perdure
from perdure.storage.memory.store import MemoryStorage
class Told(MemoryStorage):
    async def close(self):
        print("closed", flush=True)
app = Perdure("memory://")
app._runtime.loops._open_store = Told
loop = asyncio.new_event_loop()
loop.run_until_complete(app.jobs._storage())
app.jobs.sync.count()
"""
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("closed\nclosed\n", "", 0)


# ---- group commit ----------------------------------------------------------------------------------
async def test_single_enqueues_of_one_moment_share_a_commit(store, task):
    handles = await asyncio.gather(*(task.enqueue(n) for n in range(64)))
    assert store.batches == [1, 63]
    assert len({handle.id for handle in handles}) == 64


async def test_a_lone_enqueue_goes_straight_through(store, task):
    for n in range(3):
        await task.enqueue(n)
    assert store.batches == [1, 1, 1]


async def test_ones_bad_job_does_not_hurt_the_others(store, task):
    def fail(jobs: list[NewJob]) -> None:
        if any('"a":7' in job.payload for job in jobs):
            raise OSError("a poison row")

    store.fail = fail
    answers = await asyncio.gather(*(task.enqueue(n) for n in range(20)), return_exceptions=True)
    bad = [n for n, answer in enumerate(answers) if isinstance(answer, Exception)]
    assert bad == [7]
    with pytest.raises(StoreError, match="a poison row"):
        raise answers[7]


async def test_a_full_queue_does_not_hurt_the_others(app, store, task):
    await app.queues.configure("small", max_depth=2)
    small = task.using(queue="small")
    work = [small.enqueue(n) if n % 2 else task.enqueue(n) for n in range(20)]
    answers = await asyncio.gather(*work, return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 8
    assert await app.jobs.count(queue="default") == 10


async def test_a_crowd_at_a_full_queue_costs_few_calls(app, store, task):
    await app.queues.configure("small", max_depth=3)
    small = task.using(queue="small")
    answers = await asyncio.gather(*(small.enqueue(n) for n in range(200)), return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 197
    assert len(store.batches) < 10


async def test_a_caller_who_gives_up_is_left_out(app, store, task):
    store.gate = asyncio.Event()
    first, second, third = (asyncio.create_task(task.enqueue(n)) for n in range(3))
    await eventually(lambda: store.batches)
    second.cancel()
    store.gate.set()
    assert (await first).id != (await third).id
    assert await app.jobs.count() == 2


async def test_the_first_giving_up_lets_the_others_through(app, store, task):
    store.gate = asyncio.Event()
    first, second = (asyncio.create_task(task.enqueue(n)) for n in range(2))
    await eventually(lambda: store.batches)
    first.cancel()
    store.gate.set()
    assert await second
    assert await app.jobs.count() == 1


async def test_a_broken_connection_is_tried_again_with_the_same_ids(app, store, task):
    tries = []

    def fail(jobs: list[NewJob]) -> None:
        tries.append([job.id for job in jobs])
        if len(tries) < 3:
            raise ConnectionResetError("cut")

    store.fail = fail
    await task.enqueue(1)
    assert len(tries) == 3
    assert tries[0] == tries[1] == tries[2]


# ---- lists -----------------------------------------------------------------------------------------
async def test_a_list_is_one_round_trip_in_order(app, store, task):
    handles = await app.enqueue([task.call(n) for n in range(500)])
    assert store.batches == [500]
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert await app.enqueue([]) == []
    assert (await app.enqueue(task.call(1))).duplicate is False
    assert len(await app.enqueue(task.call(n) for n in range(3))) == 3


async def test_a_long_list_tells_what_is_stored_and_may_be_repeated(app, store, task):
    calls = [task.call(n) for n in range(1200)]
    store.fail = lambda jobs: (_ for _ in ()).throw(OSError("disk full")) if len(store.batches) == 2 else None
    with pytest.raises(StoreError, match="disk full") as caught:
        await app.enqueue(calls)
    assert len(caught.value.stored) == 500
    assert "500 of 1200 jobs are stored" in caught.value.__notes__[0]
    assert await app.jobs.count() == 500
    handles = await app.enqueue(calls)
    assert handles[:500] == caught.value.stored
    assert await app.jobs.count() == 1200
    await app.enqueue(calls[:1])
    assert await app.jobs.count() == 1201


async def test_the_same_call_several_times_is_several_jobs(app, task):
    call = task.call(1)
    await app.enqueue([call] * 3)
    assert await app.jobs.count() == 3


@pytest.mark.parametrize("work", [5, "task", None, [5], ["x"], {"a": 1}], ids=str)
async def test_what_is_no_call_is_refused(app, task, work):
    with pytest.raises(InvalidCall, match=r"app\.enqueue takes"):
        await app.enqueue(work)
    with pytest.raises(InvalidCall, match="number 1 of the list"):
        await app.enqueue([task.call(1), task])


async def test_a_payload_is_held_to_the_apps_own_limit():
    app = Perdure("memory://", max_bytes=100)

    @app.task
    async def task(text: str) -> str: ...

    with pytest.raises(InvalidCall, match="more than 100"):
        task.call("x" * 100)
    with pytest.raises(InvalidCall, match="more than 100"):
        app.definitions()["task"].encode_result("x" * 100)


# ---- full queues -----------------------------------------------------------------------------------
async def test_reject(app, task):
    await app.queues.configure("default", max_depth=1)
    await task.enqueue()
    with pytest.raises(QueueFull, match="'default' holds its 1 jobs"):
        await task.enqueue()
    with pytest.raises(QueueFull):
        await app.enqueue([task.using(queue="other").call(), task.call()])
    assert await app.jobs.count() == 1


async def test_drop(app, task):
    await app.queues.configure("default", max_depth=1, on_full="drop", drop_below=5)
    await task.enqueue()
    handle = await task.enqueue()
    assert handle.dropped
    with pytest.raises(perdure.NotFound, match="dropped"):
        await handle.result(timeout=1)
    with pytest.raises(perdure.NotFound, match="dropped"):
        await handle.refresh()


@pytest.mark.parametrize("many", [False, True])
async def test_wait(app, task, many):
    await app.queues.configure("default", max_depth=1, on_full="wait")
    first = await task.enqueue()
    waiting = asyncio.create_task(app.enqueue([task.call(2)]) if many else task.enqueue(2))
    await stays(lambda: not waiting.done(), 0.05)
    assert await first.cancel()
    await asyncio.wait_for(waiting, 30)
    assert await app.jobs.count(state=State.READY) == 1


async def test_waiting_for_room_can_be_given_up(app, task):
    await app.queues.configure("default", max_depth=1, on_full="wait")
    await task.enqueue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await task.enqueue(2)
    assert await app.jobs.count() == 1


# ---- blocking forms --------------------------------------------------------------------------------
def test_the_blocking_forms(app, task):
    handles = app.sync.enqueue([task.call(1), task.call(2)])
    assert app.sync.enqueue(task.call(3)).sync.refresh().state is State.READY
    assert app.jobs.sync.count() == 3
    assert handles[0].sync.cancel()
    assert [job.state for job in handles[0].sync.watch(timeout=1)] == [State.CANCELLED]
    with pytest.raises(perdure.JobCancelled):
        handles[0].sync.result(timeout=1)
    with pytest.raises(perdure.ResultTimeout):
        handles[1].sync.result(timeout=0.01)
    app.queues.sync.pause("default")
    assert [queue.paused for queue in app.queues.sync.list()] == [True]
    app.sync.signal("default")
    with app.sync as door:
        assert door.enqueue([]) == []
    assert task.sync.run(5) == 5


def test_a_watch_may_be_left_early(app, task):
    job = task.sync.enqueue()
    for seen in job.sync.watch(timeout=5):
        assert seen.state is State.READY
        break


def test_a_blocking_form_in_its_own_loop_is_told_instead_of_waiting_for_ever(app):
    @app.task
    async def handler() -> int:
        return app.jobs.sync.count()

    with pytest.raises(InvalidCall, match="would wait for itself"):
        handler.sync.run()


def test_blocking_forms_from_many_threads(app, task, store):
    threads = [threading.Thread(target=task.sync.enqueue, args=(n,)) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert app.jobs.sync.count() == 30


def test_the_generated_file_is_up_to_date():
    subprocess.run([sys.executable, "scripts/generate_sync.py", "--check"], check=True)


# ---- cost ------------------------------------------------------------------------------------------
def test_building_a_job_is_cheap(task):
    bound = task._bind()

    def build() -> float:
        began = time.perf_counter()
        for _ in range(2000):
            bound.plan.job(bound.definition.payload((1,), {}), bound.definition.arguments_hash)
        return (time.perf_counter() - began) / 2000

    assert min(build() for _ in range(5)) < 30e-6  # 5 µs on a quiet machine


def test_full_is_never_shown_to_users():
    assert not issubclass(QueueAtCapacity, perdure.PerdureError)
    assert "QueueAtCapacity" not in perdure.__all__
