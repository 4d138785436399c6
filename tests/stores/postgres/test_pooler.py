"""Behind a pooler in transaction mode: no session is ours, and everything works all the same."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from perdure import Context, Perdure
from perdure.storage.urls import opener
from perdure.testing import ManualClock, conformance
from tests.support.real_servers import server

from .pooler import Pooler

# transactions and keys need more than one statement; of the rest every eighth case is enough
CHOSEN = [
    case for number, case in enumerate(conformance.cases()) if case.verb in ("transaction", "unique") or number % 8 == 0
]


@pytest.fixture(scope="module")
def pooler():
    with Pooler(server("postgres").url) as pooler:
        yield pooler


@pytest.fixture
def url(pooler):
    return server("postgres").fresh().replace(server("postgres").url, pooler.url)


@pytest.mark.parametrize("case", CHOSEN, ids=str)
async def test_conformance(case, url):
    async def make():
        clock = ManualClock()
        store = opener(url, clock=clock, durability="relaxed")()
        await store.open()
        assert store._server().pooled
        return store, clock

    try:
        await conformance.run(case, make)
    except conformance.NotOffered as declined:
        pytest.skip(str(declined))


async def test_a_worker_runs_and_nobody_listens(url, pooler):
    app = Perdure(url)
    ran = []

    @app.task
    async def plain(number: int) -> int:
        ran.append(number)
        return number

    @app.task
    async def written(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute("insert into public.poolers values (%s)", (str(ctx.job.id),))

    with psycopg.connect(server("postgres").url, autocommit=True) as connection:
        connection.execute("create table if not exists public.poolers (job text)")
    async with app:
        handles = await app.enqueue([plain.call(number) for number in range(200)])
        effects = [await written.enqueue() for _ in range(5)]
        before = pooler.transactions
        async with app.worker(poll=0.1, concurrency=20):
            for handle in (*handles, *effects):
                await handle.result(timeout=30)
            late = await plain.enqueue(1000)
            assert await late.result(timeout=30) == 1000  # found by polling
        assert pooler.transactions > before
    assert sorted(ran) == [*range(200), 1000]
    with psycopg.connect(server("postgres").url, autocommit=True) as connection:
        found = {job for (job,) in connection.execute("select job from public.poolers").fetchall()}
        assert found == {str(handle.id) for handle in effects}
        listening = connection.execute("select query from pg_stat_activity where query ilike 'listen%'").fetchall()
        connection.execute("drop table public.poolers")
    assert not [query for (query,) in listening if url.rpartition("=")[2] in query]


async def test_cancelled_callers_leave_the_pooler_well(url):
    app = Perdure(url)

    @app.task
    async def plain(number: int) -> None: ...

    async with app:
        await app.jobs.count()
        for number in range(30):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0005 * (number % 5)):
                    await asyncio.gather(plain.enqueue(number), asyncio.sleep(1))
        assert await app.jobs.count() <= 30
        await plain.enqueue(1)


async def test_statements_that_the_queue_lives_on_stay_on_their_indexes(url):
    """Planner settings cannot be left on a session that is not ours; they are made in each transaction."""
    store = opener(url)()
    await store.open()
    try:
        seen = []

        async def look(connection):
            from perdure.storage.postgres.connection.server import pipeline

            (cursor,) = await pipeline(connection, [("SELECT current_setting('enable_seqscan')", {})])
            seen.extend(await cursor.fetchall())
            cursor = await connection.execute("SELECT current_setting('enable_seqscan')")
            seen.extend(await cursor.fetchall())
            async with connection.transaction():
                cursor = await connection.execute("SELECT current_setting('enable_seqscan')")
                seen.extend(await cursor.fetchall())

        await store._server().run_indexed(look)
        assert seen == [("off",), ("on",), ("off",)]
    finally:
        await store.close()
