"""Workers are woken after the commit where the library tells of it; after a raw commit they poll, or are signalled."""

import psycopg

from tests.support.faults import Claims

from .callers import CALLERS, with_every_caller

NEVER = 60.0  # seconds between polls: who comes sooner was woken


@with_every_caller
async def test_workers_are_woken(app, task, dsn, caller_of, monkeypatch):
    async with app, caller_of(dsn) as caller:
        claims = Claims(await app._runtime.storage(), monkeypatch)
        async with app.worker(poll=NEVER):
            first = await task.enqueue(0)
            await first.result(timeout=10)
            await claims.cease()
            await caller.begin()
            job = await task.using(connection=caller.connection).enqueue(1)
            await caller.commit()
            if not caller.told:
                await app.signal("default")
            assert await job.result(timeout=10) == 1


async def test_workers_elsewhere_are_woken(app, task, dsn, monkeypatch):
    """By NOTIFY on a connection of ours, after the commit."""
    from perdure import Perdure

    elsewhere = Perdure(app._runtime.loops.url)

    @elsewhere.task(name=task.name)
    async def same(a: object = 0) -> object:
        return a

    async with app, elsewhere, CALLERS["AsyncSession, asyncpg"](dsn) as caller:
        claims = Claims(await elsewhere._runtime.storage(), monkeypatch)
        async with elsewhere.worker(poll=NEVER):
            await (await task.enqueue(0)).result(timeout=10)
            await claims.cease()
            job = await task.using(connection=caller.connection).enqueue(1)
            await caller.commit()
            assert await job.result(timeout=10) == 1


async def test_a_raw_commit_is_found_by_the_next_poll(app, task, dsn, monkeypatch):
    async with app:
        claims = Claims(await app._runtime.storage(), monkeypatch)
        with psycopg.connect(dsn) as connection:
            async with app.worker():
                await (await task.enqueue(0)).result(timeout=10)
                await claims.cease()
                job = await task.using(connection=connection).enqueue(1)
                connection.commit()
                assert await job.result(timeout=30) == 1
