"""Faults in the middle: killed servers, ended backends, cut lines, answers that never come. Nothing is lost, nobody is deaf,
no connection leaks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import psycopg
import pytest

from perdure import Context, Perdure, StoreError
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, Want
from perdure.storage.postgres.connection import server as server_module
from tests.support.waiting import eventually, stays

from .helpers import job, open_files, opened, schema_of


class Counted:
    """An app whose handlers count their runs, and write an effect with their completion."""

    def __init__(self, url: str) -> None:
        self.app = Perdure(url, lease=5)
        self.ran: Counter[int] = Counter()

        @self.app.task(max_attempts=20)
        async def plain(number: int) -> int:
            self.ran[number] += 1
            return number

        @self.app.task(max_attempts=20)
        async def written(ctx: Context, number: int) -> None:
            tx = await ctx.transaction()
            await tx.execute("insert into public.effects values (%s)", (str(ctx.job.id),))

        self.plain, self.written = plain, written


@pytest.fixture
def effects(admin, own_server):
    admin.execute("drop table if exists public.effects")
    admin.execute("create table public.effects (job text)")

    def read() -> Counter[str]:
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            return Counter(job for (job,) in connection.execute("select job from public.effects").fetchall())

    return read


async def _survives(counted: Counted, effects, disturb, rounds: int) -> None:
    """Enqueue and work while something disturbs; in the end everything acknowledged has run, effects exactly once."""
    async with counted.app as app, app.worker(poll=0.2, concurrency=10):
        handles, written = [], []
        for number in range(rounds):
            handles += await app.enqueue([counted.plain.call(100 * number + each) for each in range(20)])
            written.append(await counted.written.enqueue(number))
            await disturb(number)
        async with asyncio.timeout(60):
            for handle in (*handles, *written):
                await handle.result(timeout=60)
    assert len(counted.ran) == 20 * rounds
    assert effects() == Counter(str(handle.id) for handle in written)


@pytest.mark.parametrize("how", ["kill", "halt"])
async def test_a_server_that_restarts_in_the_middle(own_server, own_url, effects, admin, how):
    admin.close()
    before = open_files()

    async def restart(number: int) -> None:
        if number % 3 == 1:
            await asyncio.to_thread(getattr(own_server, how))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(own_server.restart)

    await _survives(Counted(own_url), effects, restart, 6)
    assert open_files() <= before + 1


async def test_backends_that_are_ended_all_the_time(own_url, effects, admin):
    async def end_them(number: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.05))
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'perdure' and random() < 0.7"
        )

    await _survives(Counted(own_url), effects, end_them, 12)
    left = "select count(*) from pg_stat_activity where application_name = 'perdure'"
    async with asyncio.timeout(10):
        while admin.execute(left).fetchone() != (0,):
            await asyncio.sleep(0.02)


async def test_lines_that_are_cut_before_the_answer(proxy, effects):
    async def cut(number: int) -> None:
        proxy.break_after_questions(random.randint(1, 3))
        await asyncio.sleep(random.uniform(0, 0.05))

    await _survives(Counted(proxy.url), effects, cut, 12)


async def test_a_server_that_is_gone_for_a_while(proxy, effects):
    async def away(number: int) -> None:
        if number == 1:
            proxy.refuse(True)
            await asyncio.sleep(1.5)
            proxy.refuse(False)

    await _survives(Counted(proxy.url), effects, away, 3)


async def test_handlers_hear_that_their_lease_is_in_doubt_while_the_server_is_gone(proxy):
    app = Perdure(proxy.url, lease=2)
    began, heard = asyncio.Event(), asyncio.Event()

    @app.task
    async def long(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            if ctx.lost.is_set():
                heard.set()

    async with app:
        await long.enqueue()
        async with app.worker(poll=0.1, grace=0.1):
            await asyncio.wait_for(began.wait(), 10)
            proxy.refuse(True)
            await asyncio.wait_for(heard.wait(), 10)
            proxy.refuse(False)


async def test_a_line_that_swallows_everything_is_given_up(proxy, monkeypatch):
    monkeypatch.setitem(server_module.ANSWER_WITHIN, "quick", 0.5)
    async with opened(proxy.url) as store:
        await store.enqueue([job()])
        proxy.swallow(True)
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.exchange((), Claim("w", 1, (Want(1),)))
        storing = asyncio.create_task(store.enqueue([job()]))
        await stays(lambda: not storing.done(), 0.7)
        proxy.swallow(False)
        proxy.cut()
        await asyncio.wait_for(storing, 20)
        assert await store.count(Filter()) == 2


async def test_every_verb_meets_an_ended_backend(own_url, admin):
    """An idle connection that was ended is not handed out: nobody notices."""
    async with opened(own_url) as store:
        (placed,) = await store.enqueue([job()])
        (record,) = await store.claim(Claim("w", new_stamp(), (Want(1),)))
        verbs = [
            lambda: store.enqueue([job()]),
            lambda: store.exchange((), Claim("w", new_stamp(), (Want(1),))),
            lambda: store.renew([record.hold]),
            lambda: store.check([record.hold]),
            lambda: store.recover_claim("w", record.stamp),
            lambda: store.promote(10),
            lambda: store.lapsed(10, 10**9),
            lambda: store.prune(10),
            lambda: store.get([placed.id]),
            lambda: store.find(Filter(), 10, None),
            lambda: store.count(Filter()),
            lambda: store.queues(),
            lambda: store.workers(10**6),
            lambda: store.now(),
            lambda: store.durability(),
        ]
        for verb in verbs:
            await asyncio.gather(store.now(), store.count(Filter()))
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'perdure'"
            )
            await verb()
        transaction = await store.begin_transaction(10**7)
        assert (await transaction.complete(decide(record, Succeeded("1")))).accepted


async def test_a_transaction_whose_backend_is_ended_leaves_nothing(own_url, admin, effects):
    async with opened(own_url) as store:
        await store.enqueue([job()])
        (record,) = await store.claim(Claim("w", new_stamp(), (Want(1),)))
        transaction = await store.begin_transaction(10**7)
        await transaction.execute("insert into public.effects values ('x')")
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure'")
        with pytest.raises(StoreError, match=r"ended the connection|cannot be reached"):
            await transaction.complete(decide(record, Succeeded("1")))
        assert (await store.check([record.hold]))[0].accepted
        assert not effects()
        again = await store.begin_transaction(10**7)
        assert (await again.complete(decide(record, Succeeded("1")))).accepted


# ---- the server says no ----------------------------------------------------------------------------
async def test_no_connection_left(own_url, admin):
    """Who has one connection takes turns on it; who has none is told why."""
    schema = schema_of(own_url)
    async with opened(own_url) as store:
        await store.enqueue([job()])
    admin.execute("create role limited login connection limit 4")
    admin.execute(f"grant usage on schema {schema} to limited")
    for privilege in ("select, insert, update, delete on all tables", "usage on all sequences"):
        admin.execute(f"grant {privilege} in schema {schema} to limited")
    try:
        limited = own_url.replace("postgres@", "limited@")
        plain = limited.partition("?")[0]
        async with opened(limited, migrate=False) as narrow:
            await narrow.now()  # one connection of each pool by now
            with psycopg.connect(plain), psycopg.connect(plain):
                await asyncio.gather(*(narrow.enqueue([job()]) for _ in range(10)))
                with pytest.raises(StoreError, match="no connection left"):
                    await narrow.begin_transaction(10**6)
                await narrow.enqueue([job(limits='[["k",1]]')])
                want = Want(5, limited=True)
                assert len((await narrow.exchange([], Claim("w", new_stamp(), (want,)))).claimed) == 1
            await asyncio.gather(*(narrow.enqueue([job()]) for _ in range(30)))
            assert await narrow.count(Filter()) == 42
    finally:
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'limited'")
        admin.execute("drop owned by limited")
        admin.execute("drop role limited")


async def test_statement_timeout_and_locks_of_others(own_url, admin):
    schema = schema_of(own_url)
    async with opened(own_url) as store:
        await store.enqueue([job()])
    slow = f"{own_url}&options=-c%20statement_timeout%3D200"
    hasty = f"{own_url}&options=-c%20lock_timeout%3D100"
    with psycopg.connect(own_url.partition("?")[0]) as blocker:
        async with opened(slow) as timed, opened(hasty) as locked:
            blocker.execute(f"lock table {schema}.waiting in access exclusive mode")
            with pytest.raises(StoreError, match="statement_timeout"):
                await timed.enqueue([job()])
            waiting = asyncio.create_task(locked.enqueue([job()]))
            await stays(lambda: not waiting.done(), 0.5)
            blocker.rollback()
            await asyncio.wait_for(waiting, 10)
            await timed.enqueue([job()])
            assert await timed.count(Filter()) == 3


async def test_a_primary_that_becomes_read_only_for_a_while(own_url, admin):
    async with opened(own_url) as store:
        await store.enqueue([job()])
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:
            await eventually(lambda: admin.execute("show default_transaction_read_only").fetchone() == ("on",))
            storing = asyncio.create_task(store.enqueue([job()]))
            await stays(lambda: not storing.done(), 0.4)
            with pytest.raises(StoreError, match="takes no writes"):
                await store.exchange((), Claim("w", new_stamp(), (Want(1),)))
        finally:
            admin.execute("set default_transaction_read_only = off")
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")
        await asyncio.wait_for(storing, 20)
        assert await store.count(Filter()) == 2


async def test_serializable_by_default_makes_no_difference(own_url, admin):
    url = f"{own_url}&options=-c%20default_transaction_isolation%3Dserializable"
    async with opened(url) as store:
        await store.enqueue([job() for _ in range(200)])

        async def claimer(name: str) -> list[str]:
            mine = []
            while claimed := await store.claim(Claim(name, new_stamp(), (Want(10),))):
                await store.apply([decide(record, Succeeded("1")) for record in claimed])
                mine += [record.id for record in claimed]
            return mine

        found = await asyncio.gather(*(claimer(f"w{number}") for number in range(4)))
        assert len({id for part in found for id in part}) == 200


# ---- cancelled callers -----------------------------------------------------------------------------
async def test_cancelled_callers_leave_connections_and_data_right(own_url, admin, caplog):
    async with opened(own_url) as store:
        await store.enqueue([job(unique_key="k", unique_scope="active")])
        for number in range(60):
            given = [job() for _ in range(5)] if number % 2 else [job(unique_key="k", unique_scope="active")]
            claim = Claim("w", new_stamp(), (Want(3),))
            task = asyncio.create_task(store.enqueue(given) if number % 3 else store.exchange((), claim))
            await asyncio.sleep(random.uniform(0, 0.004))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10):
            while store._server()._quick._busy:  # what was cancelled ends without its callers
                await asyncio.sleep(0.01)
        counted = await store.count(Filter())
        assert (counted - 1) % 5 == 0
        busy = "select count(*) from pg_stat_activity where application_name = 'perdure' and state <> 'idle'"
        assert admin.execute(busy).fetchone() == (0,)
        await store.enqueue([job()])
        transaction = await store.begin_transaction(10**7)
        sleeping = asyncio.create_task(transaction.execute("select pg_sleep(30)"))
        await eventually(lambda: admin.execute(busy).fetchone() == (1,))
        sleeping.cancel()
        await asyncio.gather(sleeping, return_exceptions=True)
        await transaction.rollback()
        assert admin.execute(busy).fetchone() == (0,)
        assert not store._server()._transactions._busy
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_caller_cancelled_while_it_waits_for_a_lock_goes_on_soon(own_url):
    async with opened(own_url) as store:
        await store.enqueue([job()])
        with psycopg.connect(own_url.partition("?")[0]) as blocker:
            blocker.execute(f"lock table {schema_of(own_url)}.waiting in access exclusive mode")
            waiting = asyncio.create_task(store.enqueue([job()]))
            refused = "select count(*) from pg_locks where not granted"
            await eventually(lambda: blocker.execute(refused).fetchone() != (0,))
            waiting.cancel()
            async with asyncio.timeout(server_module.SETTLE_WITHIN + 2):
                await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        await store.enqueue([job()])


async def test_a_server_that_vanishes_is_met_in_silence(proxy, caplog):
    """Nothing of the driver's inner life is printed when a line is cut in the middle of a transaction."""
    async with opened(proxy.url) as store:
        await store.enqueue([job(unique_key="k", unique_scope="active")])
        for _ in range(5):
            proxy.break_after_questions(1)
            await store.enqueue([job(unique_key=str(random.random()), unique_scope="active")])
        proxy.refuse(True)
        with pytest.raises(StoreError):
            await store.exchange((), Claim("w", new_stamp(), (Want(1),)))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
