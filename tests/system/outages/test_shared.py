"""A store that is down or busy: all callers who wait for it have their error within one limit, not one after another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import redis

from perdure import Perdure, PerdureError, ResultTimeout, Task
from perdure.client.handle import OPENED_WITHIN
from perdure.storage.contract import Claim, Filter, Storage, Want
from perdure.storage.postgres.connection import server as postgres_server
from perdure.storage.sqlite.store import SqliteStorage
from tests.support.addresses import address
from tests.support.proxy import Proxy
from tests.support.waiting import eventually, wait_until

from .conftest import own_server

SLACK = 3.0  # seconds on top, of an idle machine; one after another would take minutes
Verb = Callable[[], Awaitable[object]]


def app_on(url: str) -> tuple[Perdure, Task[[int], int]]:
    app = Perdure(url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return app, double


def verbs_of(app: Perdure, double: Task[[int], int], store: Storage) -> list[Verb]:
    """Verbs that write, of every kind there is. A locked SQLite file can be read in some modes."""
    claim = Claim("somebody", 1, (Want(5),))
    return [
        lambda: double.enqueue(1),
        lambda: app.enqueue([double.call(2), double.call(3)]),
        lambda: app.queues.pause("other"),
        lambda: store.exchange([], claim),
        lambda: store.prune(10),
        lambda: store.begin_transaction(5_000_000),
    ]


def readers_of(app: Perdure, store: Storage) -> list[Verb]:
    return [
        lambda: app.queues.list(),
        lambda: store.count(Filter()),
        lambda: store.get(["0199b2f5-0000-7000-8000-000000000000"]),
        lambda: store.now(),
    ]


async def timed(verb: Verb) -> tuple[float, BaseException | None]:
    began = time.monotonic()
    try:
        await verb()
    except Exception as error:
        return time.monotonic() - began, error
    return time.monotonic() - began, None


# ---- one limit for all -----------------------------------------------------------------------------
async def test_all_callers_have_their_error_within_one_limit(kind, outage, limit, machine):
    app, double = app_on(outage.url)
    async with app:
        store = await app._runtime.storage()
        await double.enqueue(0)
        outage.begin()
        try:
            verbs = verbs_of(app, double, store)
            if kind in ("valkey", "mongo"):
                verbs.pop()  # the one has no transactions for handlers, the other begins them without a word
            first = [asyncio.create_task(timed(verbs[n % len(verbs)])) for n in range(60)]
            await asyncio.sleep(limit / 2)
            later = [asyncio.create_task(timed(verbs[n % len(verbs)])) for n in range(60)]
            ended = await asyncio.gather(*first, *later)
        finally:
            outage.end()
        for took, error in ended:
            assert isinstance(error, PerdureError), error
            assert took < machine.seconds(limit + SLACK)
        assert await (await double.enqueue(1)).refresh() is not None, "the store works as before"


@pytest.mark.parametrize("kind", ["postgres", "valkey", "mongo"], indirect=True)
async def test_who_only_reads_has_its_error_too(kind, outage, limit, machine):
    app, double = app_on(outage.url)
    async with app:
        store = await app._runtime.storage()
        verbs = readers_of(app, store)[: 3 if kind == "mongo" else 4]  # its clock counts on by itself
        outage.begin()
        try:
            ended = await asyncio.gather(*(timed(verbs[n % len(verbs)]) for n in range(100)))
        finally:
            outage.end()
        for took, error in ended:
            assert isinstance(error, PerdureError), error
            assert took < machine.seconds(limit + SLACK)
        await double.enqueue(1)


@pytest.mark.parametrize("kind", ["postgres", "valkey", "mongo"])
async def test_a_server_that_refuses_connections(kind, tmp_path, limit, machine):
    with Proxy(address(kind, tmp_path)) as proxy:
        app, double = app_on(proxy.url)
        async with app:
            await double.enqueue(0)
            proxy.refuse(True)
            ended = await asyncio.gather(*(timed(lambda n=n: double.enqueue(n)) for n in range(100)))
            proxy.refuse(False)
            for took, error in ended:
                assert isinstance(error, PerdureError), error
                assert took < machine.seconds(limit + SLACK)
            await double.enqueue(1)


async def test_a_store_that_answers_again_in_time_gives_nobody_an_error(outage, kind):
    """The limit is not a reason to be hasty."""
    app, double = app_on(outage.url)
    async with app:
        await double.enqueue(0)
        outage.begin()
        calls = [asyncio.create_task(timed(lambda n=n: double.enqueue(n))) for n in range(20)]
        await asyncio.sleep(1)
        outage.end()
        assert [error for _, error in await asyncio.gather(*calls)] == [None] * 20


async def test_a_script_of_somebody_else_that_blocks_the_server(limit, machine):
    with own_server("valkey", **{"busy-reply-threshold": "100"}) as own:
        app, double = app_on(own.fresh())
        async with app:
            await double.enqueue(0)
            endless = asyncio.create_task(asyncio.to_thread(_run_endless_script, own.url))
            await asyncio.to_thread(wait_until, lambda: _is_busy(own.url))
            ended = await asyncio.gather(*(timed(lambda n=n: double.enqueue(n)) for n in range(60)))
            with redis.Redis.from_url(own.url) as client:
                client.script_kill()
            await endless
            for took, error in ended:
                assert isinstance(error, PerdureError), error
                assert took < machine.seconds(limit + SLACK)
            await double.enqueue(1)


def _is_busy(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return not client.ping()
        except redis.RedisError as busy:
            return "BUSY" in str(busy)


def _run_endless_script(url: str) -> None:
    with redis.Redis.from_url(url) as client, suppress(redis.RedisError):
        client.eval("while true do end", 0)


async def test_all_connections_of_a_pool_are_busy(limit, tmp_path, machine):
    """Who waits in line for one has its error within the limit as well."""
    app, double = app_on(address("postgres", tmp_path))
    async with app:
        store = await app._runtime.storage()

        pool = store._server()._quick
        held = [await pool.take(5) for _ in range(postgres_server.QUICK)]
        ended = await asyncio.gather(*(timed(lambda n=n: double.enqueue(n)) for n in range(30)))
        for connection in held:
            pool.give(connection)
        for took, error in ended:
            assert isinstance(error, PerdureError), error
            assert took < machine.seconds(limit + SLACK)
        await double.enqueue(1)


def test_the_limit_is_a_minute_and_half_of_that_for_a_file():
    assert Storage.gives_up_after == 60.0
    assert SqliteStorage.gives_up_after == 30.0


async def test_the_deadline_of_a_caller_counts_from_its_own_call(outage, kind):
    """With the real limit: who waits for another has a deadline of its own, and not one behind the other."""
    app, double = app_on(outage.url)
    async with app:
        await double.enqueue(0)
        place = await app._runtime.open()
        loop = asyncio.get_running_loop()
        outage.begin()
        try:
            before, gatherer = loop.time(), place.group_commit
            calls = [asyncio.create_task(double.enqueue(n)) for n in range(10)]
            await eventually(lambda: len(gatherer._waiting) == 9)  # and one is under way
            after = loop.time()
            for each in gatherer._waiting:
                assert before <= each.until - place.storage.gives_up_after <= after
        finally:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            outage.end()


# ---- a caller's own limit --------------------------------------------------------------------------
async def test_a_timeout_around_any_verb_is_honoured(kind, outage, machine):
    """At once, and what was cancelled leaves nothing half done: the connections go on with the next verbs."""
    app, double = app_on(outage.url)
    async with app:
        store = await app._runtime.storage()
        await double.enqueue(0)
        verbs = verbs_of(app, double, store)
        if kind in ("valkey", "mongo"):
            verbs.pop()
        if kind not in ("sqlite", "mongo"):
            verbs += readers_of(app, store)
        outage.begin()
        try:
            for verb in verbs:
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await verb()
                assert time.monotonic() - began < machine.seconds(1.5)
        finally:
            outage.end()
        handles = [await double.enqueue(n) for n in range(20)]
        assert [(await handle.refresh()).state for handle in handles] == ["ready"] * 20


async def test_a_long_list_that_is_cancelled(outage, kind, machine):
    """Its parts are stored side by side; none of them keeps the caller waiting."""
    app, double = app_on(outage.url)
    async with app:
        await double.enqueue(0)
        outage.begin()
        try:
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await app.enqueue([double.call(n) for n in range(6_000)])
            assert time.monotonic() - began < machine.seconds(3)
        finally:
            outage.end()
        await double.enqueue(1)


@pytest.mark.parametrize("opened", [True, False], ids=["open", "not open yet"])
async def test_the_timeout_of_a_blocking_form_is_honoured(outage, kind, opened, machine):
    app, double = app_on(outage.url)
    took: list[float] = []

    def wait(handle) -> None:
        began = time.monotonic()
        try:
            handle.sync.result(timeout=0.5)
        except ResultTimeout:
            took.append(time.monotonic() - began)

    async with app:
        handle = await double.enqueue(0)
        if opened:
            await asyncio.to_thread(handle.sync.refresh)
        outage.begin()
        try:
            thread = threading.Thread(target=wait, args=(handle,))
            thread.start()
            await asyncio.to_thread(thread.join, 60)
        finally:
            outage.end()
        assert took, "it waits on"
        assert took[0] < machine.seconds(3 if opened else OPENED_WITHIN + 2)
        await asyncio.to_thread(app.sync.close)
