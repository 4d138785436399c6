"""Trouble between a worker and its store. When it is over, work goes on by itself: no deaf worker, no busy loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

import pytest

import servers
from perdure import Perdure
from perdure.client.group_commit import wait_for_room
from perdure.storage.contract import Filter
from perdure.storage.mongo.store import MongoStorage
from perdure.storage.postgres.connection import server
from perdure.storage.postgres.store import PostgresStorage
from perdure.storage.redis.store import RedisStorage
from perdure.storage.sqlite.connection import writer
from perdure.worker.claiming import claim_loop
from perdure.worker.claiming.answer_timeout import LONGEST, AnswerTimedOut, AnswerTimeout
from perdure.worker.health import claim_watchdog
from tests.support.addresses import address
from tests.support.proxy import Proxy
from tests.support.real_servers import decline
from tests.support.waiting import stays

SERVERS = ["postgres", "valkey", "mongo"]
HASTE = {"mongo": "&heartbeatFrequencyMS=500&connectTimeoutMS=1000"}


@pytest.fixture(params=SERVERS)
def kind(request):
    return request.param


@pytest.fixture
def direct(kind, tmp_path):
    """A store on a server, reached without detours."""
    return address(kind, tmp_path)


@pytest.fixture
def proxy(direct, kind, monkeypatch):
    for store in (PostgresStorage, RedisStorage, MongoStorage):
        monkeypatch.setattr(store, "answer_timeout", 0.5)
    monkeypatch.setattr(server, "SETTLE_WITHIN", 0.5)
    with Proxy(direct) as proxy:
        proxy.url += HASTE.get(kind, "")
        yield proxy


class Plant:
    """A worker on a way that can be disturbed, and the same task on a safe one, from which it is given jobs."""

    def __init__(self, safe: str, disturbed: str) -> None:
        self.safe, self.app = Perdure(safe, lease=20), Perdure(disturbed, lease=20)
        self.ran: list[int] = []
        self.double, _ = self._task(self.safe), self._task(self.app)

    def _task(self, app: Perdure):
        @app.task
        async def double(n: int) -> int:
            self.ran.append(n)
            await asyncio.sleep(0)
            return 2 * n

        return double

    async def works(self, n: int, within: float = 30) -> None:
        handle = await self.double.enqueue(n)
        assert await handle.result(timeout=within) == 2 * n


# ---- servers ---------------------------------------------------------------------------------------
async def test_lines_that_die_without_a_word(direct, proxy):
    """Half-open: nobody hangs up and nobody answers. New lines work; then nothing does for a while."""
    plant = Plant(direct, proxy.url)
    async with plant.safe, plant.app, plant.app.worker(poll=0.2):
        await plant.works(1)
        proxy.mute()
        await plant.works(2, within=15)
        proxy.swallow(True)
        handle = await plant.double.enqueue(3)
        await stays(lambda: 3 not in plant.ran, 1.5)
        proxy.swallow(False)
        assert await handle.result(timeout=15) == 6
    assert plant.ran == [1, 2, 3]


async def test_a_store_that_is_gone_for_a_while_and_slow_afterwards(direct, proxy):
    plant = Plant(direct, proxy.url)
    async with plant.safe, plant.app, plant.app.worker(poll=0.2):
        await plant.works(1)
        called, used = proxy.called, time.process_time()
        proxy.refuse(True)
        handle = await plant.double.enqueue(2)
        await asyncio.sleep(2)
        assert time.process_time() - used < 1, "a worker without a store is no busy loop"
        assert proxy.called - called < 80, "nor does it knock all the time"
        proxy.refuse(False)
        assert await handle.result(timeout=15) == 4
        proxy.delay(0.15)
        await plant.works(3)
        proxy.delay(0)
        await plant.works(4, within=15)
    assert plant.ran == [1, 2, 3, 4]


async def test_a_server_that_is_killed_under_a_running_handler(kind):
    """It comes back a moment later; what ended meanwhile is told then, once."""
    try:
        own = servers.start(kind, settings={"appendfsync": "always"} if kind == "valkey" else {})
    except servers.NotAvailable as missing:
        decline(kind, missing)
    if own.process is None:
        own.stop()
        pytest.skip("the server that the environment names is not ours to kill")
    with own:
        app = Perdure(own.fresh(), lease=20)
        began, go_on, ran = asyncio.Event(), asyncio.Event(), []

        @app.task
        async def work(n: int) -> int:
            ran.append(n)
            began.set()
            await go_on.wait()
            return n

        async with app, app.worker(poll=0.2):
            first = await work.enqueue(1)
            await asyncio.wait_for(began.wait(), 10)
            await asyncio.to_thread(own.kill)
            go_on.set()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own.restart)
            assert await first.result(timeout=30) == 1
            assert await (await work.enqueue(2)).result(timeout=30) == 2
    assert ran == [1, 2]


# ---- every store -----------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")  # pymongo's, when it is just connecting
async def test_a_cancelled_call_ends_with_its_cancellation(app):
    """Whenever it comes; a limit that is lost in a driver would be none."""
    async with app:
        store = await app._runtime.storage()
        for turns in range(60):
            call = asyncio.create_task(store.count(Filter()))
            for _ in range(turns):
                await asyncio.sleep(0)
            if call.done():
                break
            call.cancel()
            await asyncio.wait([call], timeout=10)
            assert call.cancelled()
        assert await store.count(Filter()) == 0


async def test_waiting_for_room_can_be_cancelled_at_any_moment():
    class Listened:
        def listen(self, topic, wake):
            self.wake = wake
            return lambda: None

    ends = []
    for turns in range(6):
        listened = Listened()
        waiting = asyncio.create_task(wait_for_room(listened, 10))
        await asyncio.sleep(0.001)
        listened.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        woken = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting], timeout=5)
        ends.append("woken" if woken else "cancelled" if waiting.cancelled() else "stuck")
    assert set(ends) == {"woken", "cancelled"}


# ---- a file ----------------------------------------------------------------------------------------
async def test_a_file_that_others_keep_locked(tmp_path, monkeypatch):
    """Longer than a piece of work is patient: an error in the log, and no more."""
    monkeypatch.setattr(writer, "BUSY_LIMIT", 0.2)
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}", lease=20)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app:
        handle = await double.enqueue(1)
        await app.queues.pause("default")
        async with app.worker(poll=0.05):
            locked = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
            used = time.process_time()
            locked.execute("begin exclusive")
            await asyncio.sleep(1)
            locked.execute("rollback")
            locked.close()
            assert time.process_time() - used < 0.8
            await app.queues.resume("default")
            assert await handle.result(timeout=15) == 2


# ---- any store -------------------------------------------------------------------------------------
class Stuck:
    """A memory store whose exchanges can be made to hang, or to take hold after everybody has given them up."""

    def __init__(self, real) -> None:
        self._real = real
        self.hangs = False
        self.late_by = 0.0
        self.late: set[asyncio.Task] = set()

    def __getattr__(self, name):
        return getattr(self._real, name)

    async def exchange(self, *asked):
        if self.hangs:
            await asyncio.Event().wait()
        if self.late_by and asked[1] is not None:
            late = asyncio.create_task(self._later(self.late_by, asked))
            self.late.add(late)
            return await asyncio.shield(late)
        return await self._real.exchange(*asked)

    async def _later(self, seconds, asked):
        await asyncio.sleep(seconds)
        return await self._real.exchange(*asked)


@pytest.fixture
def stuck(monkeypatch):
    app = Perdure("memory://")
    ran: list[int] = []

    @app.task
    async def work(n: int) -> int:
        ran.append(n)
        return n

    async def prepared():
        store = Stuck(await app._runtime.storage())

        async def storage():
            return store

        monkeypatch.setattr(app._runtime, "storage", storage)
        return store

    return app, work, ran, prepared


async def test_a_pump_that_hangs_is_noticed_and_started_anew(stuck, monkeypatch, caplog):
    monkeypatch.setattr(claim_watchdog, "UNANSWERED", 0.3)
    monkeypatch.setattr(claim_watchdog, "STUCK", 0.8)
    app, work, ran, prepared = stuck
    caplog.set_level(logging.INFO, "perdure")
    async with app:
        store = await prepared()
        async with app.worker(poll=0.1):
            assert await (await work.enqueue(1)).result(timeout=10) == 1
            store.hangs = True
            async with asyncio.timeout(10):
                while "no claim has been answered" not in caplog.text:
                    await asyncio.sleep(0.02)
            store.hangs = False  # the exchange that hangs will hang for ever
            assert await (await work.enqueue(2)).result(timeout=10) == 2
            async with asyncio.timeout(10):
                while "answered again" not in caplog.text:
                    await asyncio.sleep(0.02)
    assert "is restarted" in caplog.text
    assert ran == [1, 2]


async def test_a_full_worker_is_not_taken_for_a_deaf_one(stuck, monkeypatch, caplog):
    monkeypatch.setattr(claim_watchdog, "UNANSWERED", 0.3)
    monkeypatch.setattr(claim_watchdog, "STUCK", 0.4)
    monkeypatch.setattr(claim_watchdog, "LATE", 0.1)
    app, _, _, _ = stuck

    @app.task
    async def sleep() -> None:
        await asyncio.sleep(1.5)

    async with app, app.worker(poll=0.05, concurrency=1):
        await (await sleep.enqueue()).result(timeout=10)
    assert "no claim" not in caplog.text


async def test_a_claim_that_was_given_up_and_took_hold_later(stuck, monkeypatch):
    """Its jobs are not left to the end of their lease."""
    monkeypatch.setattr(claim_loop, "ASK_AGAIN", 1.0)
    app, work, ran, prepared = stuck
    async with app:
        store = await prepared()
        store.answer_timeout = 0.1
        store.late_by = 0.5
        handle = await work.enqueue(1)
        async with app.worker(poll=0.1):
            async with asyncio.timeout(10):
                while not store.late:
                    await asyncio.sleep(0.01)
            store.late_by = 0
            assert await handle.result(timeout=20) == 1
        assert (await handle.refresh()).attempt == 1
    assert ran == [1]


async def test_patience_is_longer_with_a_slow_store_and_ends_with_a_silent_one():
    patience = AnswerTimeout(0.05)

    async def answer(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "answer"

    with pytest.raises(AnswerTimedOut, match="no answer within"):
        await patience.answer(answer(10))
    assert patience.seconds == pytest.approx(0.1)
    with pytest.raises(AnswerTimedOut):
        await patience.answer(answer(10))
    assert await patience.answer(answer(0.12)) == "answer"
    assert 0.1 < patience.seconds < 1
    with pytest.raises(AnswerTimedOut):
        await patience.answer(answer(10), 0.01)
    patience._took = 1000.0
    assert patience.seconds == LONGEST
    assert AnswerTimeout(float("inf")).seconds == float("inf")


async def test_patience_and_those_who_stop_its_caller():
    """A caller that is stopped is stopped, whether the time was up as well or not; one that was not stopped goes on."""
    asked = asyncio.Event()

    async def silent() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in the last moment"

    async def out_of_time() -> None:
        raise TimeoutError("of its own")

    patience = AnswerTimeout(0.05)
    waiting = asyncio.create_task(patience.answer(silent()))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert patience.seconds == pytest.approx(0.05), "no answer was missed"

    async def both() -> None:
        asyncio.get_running_loop().call_later(0.05, asyncio.current_task().cancel)
        await AnswerTimeout(0.05).answer(asyncio.sleep(10))

    with pytest.raises((asyncio.CancelledError, AnswerTimedOut)):
        await asyncio.create_task(both())
    assert await patience.answer(stubborn()) == "in the last moment"
    assert asyncio.current_task().cancelling() == 0
    with pytest.raises(TimeoutError, match="of its own"):
        await patience.answer(out_of_time())
    longer, shorter = (asyncio.create_task(patience.answer(asyncio.sleep(10), most)) for most in (0.04, 0.01))
    for each in (shorter, longer):
        with pytest.raises(AnswerTimedOut):
            await each
    assert not patience._limits
