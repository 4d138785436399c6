"""Wake-ups between processes: after the commit, gathered, per queue; an ear that breaks is opened again."""

from __future__ import annotations

import asyncio
import os

import psycopg
import pytest

from perdure import Perdure, StoreError
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, Want
from perdure.storage.postgres.connection import signals
from perdure.storage.postgres.connection.signals import channel_of
from tests.support.real_servers import server
from tests.support.waiting import stays

from .helpers import job, opened, schema_of


class Bell:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.rung = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.rung += 1
        self._event.set()

    async def heard(self, within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            await self._event.wait()
        self._event.clear()


@pytest.fixture
def url():
    return server("postgres").fresh()


async def _listening(store, *arguments) -> Bell:
    """A bell of a store whose ear is open: that is told to everybody once."""
    bell = Bell()
    store.listen("ready", bell, *arguments)
    await bell.heard()
    return bell


async def test_those_who_listen_elsewhere_are_woken_for_their_queues(url):
    async with opened(url) as here, opened(url) as there:
        mail = await _listening(there, frozenset({"mail"}))
        other, ended = Bell(), Bell()
        there.listen("ready", other, frozenset({"other"}))
        there.listen("changed", ended)
        await here.enqueue([job(queue="mail")])
        await mail.heard()
        assert other.rung == 0
        (record,) = await here.claim(Claim("w", new_stamp(), (Want(1),)))
        assert ended.rung == 0
        await here.apply([decide(record, Succeeded("1"))])
        await ended.heard()
        assert (mail.rung, other.rung) == (2, 0)


async def test_nobody_is_woken_before_the_commit(url):
    async with opened(url) as here, opened(url) as there:
        bell = await _listening(there)
        transaction = await here.begin_transaction(10**7)
        await transaction.enqueue([job()])
        await stays(lambda: bell.rung == 1, 0.1)
        await transaction.rollback()
        await stays(lambda: bell.rung == 1, 0.1)


async def test_what_comes_together_is_told_together(url):
    async with opened(url) as here:
        with psycopg.connect(server("postgres").url, autocommit=True) as ear:
            ear.execute(f"listen {channel_of(schema_of(url))}")
            await asyncio.gather(*(here.enqueue([job(queue=f"q{number}")]) for number in range(100)))
            await here.signal([])
            told = [notice.payload for notice in ear.notifies(timeout=0.3)]
        assert 1 <= len(told) <= 6
        assert {f"q{number}" for number in range(100)} == {
            name for text in told for name in text.partition("[")[2].split('"') if name.startswith("q")
        }


async def test_more_queues_than_fit_into_a_notice_wake_everybody(url):
    async with opened(url) as here, opened(url) as there:
        bell = await _listening(there, frozenset({"mail"}))
        await here.enqueue([job(queue=f"{number:03d}{'x' * 60}") for number in range(400)])
        await bell.heard()


async def test_an_ear_that_is_ended_is_opened_again_and_misses_nothing(own_url, admin):
    async with opened(own_url) as here, opened(own_url) as there:
        bell = await _listening(there)
        for _ in range(3):
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen %'")
            await bell.heard()  # once it hears again
            await here.enqueue([job()])
            await bell.heard()


async def test_an_ear_that_is_deaf_without_an_error_is_noticed(proxy, own_url, monkeypatch):
    monkeypatch.setattr(signals, "CHECK_EVERY", 0.3)
    monkeypatch.setattr(signals, "ANSWER_WITHIN", 0.3)
    async with opened(own_url) as here, opened(proxy.url) as there:
        bell = await _listening(there)
        proxy.swallow(True)
        await here.enqueue([job()])
        await stays(lambda: bell.rung == 1, 0.8)
        proxy.swallow(False)
        await bell.heard(10)
        await here.enqueue([job()])
        await bell.heard()


async def test_an_ear_tries_again_with_pauses(proxy):
    async with opened(proxy.url) as there:
        await _listening(there)
        proxy.refuse(True)
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.sleep(1.5)
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        proxy.refuse(False)
        bell = Bell()
        there.listen("ready", bell)
        await bell.heard(10)


async def test_a_notice_of_somebody_else_wakes_all(url):
    async with opened(url) as there:
        bell = await _listening(there, frozenset({"mail"}))
        with psycopg.connect(server("postgres").url, autocommit=True) as other:
            other.execute(f"notify {channel_of(schema_of(url))}, 'hello'")
        await bell.heard()


async def test_signals_can_be_switched_off(url):
    off = f"{url}&signals=off"
    async with opened(off) as here, opened(off) as there:
        near, far = Bell(), Bell()
        here.listen("ready", near)
        there.listen("ready", far)
        with psycopg.connect(server("postgres").url, autocommit=True) as ear:
            ear.execute(f"listen {channel_of(schema_of(url))}")
            await here.enqueue([job()])
            await near.heard()
            assert not list(ear.notifies(timeout=0.2))
        assert far.rung == 0
        assert there._signals()._ear is None


async def test_a_worker_without_signals_finds_jobs_by_polling(url):
    app, producer = Perdure(f"{url}&signals=off"), Perdure(f"{url}&signals=off")

    @app.task
    async def echo(number: int) -> int:
        return number

    @producer.task(name="echo")
    async def asked(number: int) -> int: ...

    async with app, producer, app.worker(poll=0.1):
        for number in range(3):
            assert await (await asked.enqueue(number)).result(timeout=20) == number


async def test_a_forked_child_leaves_its_parents_connections_alone(url):
    app = Perdure(url)

    @app.task
    async def plain() -> None: ...

    async with app:
        await plain.enqueue()
        child = os.fork()
        if not child:
            code = 1
            try:

                async def work() -> None:
                    async with app:
                        await plain.enqueue()

                loop = asyncio.new_event_loop()
                asyncio._set_running_loop(None)
                loop.run_until_complete(work())
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await plain.enqueue()
        assert await app.jobs.count() == 3


async def test_a_store_of_another_process_says_so(url, monkeypatch):
    async with opened(url) as store:
        real = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: real + 1)
            with pytest.raises(StoreError, match="before this process was forked"):
                await store.count(Filter())
        assert await store.count(Filter()) == 0


def test_long_schemas_have_channels_of_their_own():
    names = {channel_of("a" * 48), channel_of("b" * 60), channel_of("b" * 61)}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)
