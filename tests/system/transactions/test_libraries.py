"""The same story on every library: committed → there and run by a worker; rolled back → nothing, not even a signal."""

import asyncio
from contextlib import suppress

import pytest

from perdure import InvalidCall, State, Unique
from tests.support.waiting import eventually, stays

from .callers import CALLERS, with_every_caller
from .tools import signals

ODD = "é 日本 😀 \\u0000 ' \" % ? $1 {schema} :name \ue000"


@with_every_caller
async def test_committed_is_there_and_rolled_back_is_not(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        await caller.begin()
        await caller.run("create temp table mine (a integer)")
        await caller.commit()
        joined = task.using(connection=caller.connection, tags=["x"], priority=3)
        with signals(await app._runtime.storage()) as told:
            await caller.begin()
            await caller.run("insert into mine values (1)")
            undone = await joined.enqueue(1)
            assert await app.jobs.get(undone.id) is None
            await caller.rollback()
            await stays(lambda: told == [], 0.1)
            assert await app.jobs.count() == 0

            await caller.begin()
            await caller.run("insert into mine values (2)")
            job = await joined.enqueue(2)
            again = await joined.using(queue="other", delay=3600).enqueue(3)
            assert await app.jobs.count() == 0
            await caller.commit()
            if caller.told:
                await eventually(lambda: set(told) == {"default", "other"})
            else:
                await stays(lambda: told == [], 0.1)
        await caller.begin()
        assert list(await caller.fetch("select a from mine")) == [(2,)]
        await caller.rollback()
        seen = await job.refresh()
        assert (seen.state, seen.priority, seen.tags, seen.payload) == (State.READY, 3, ("x",), '{"a":2}')
        assert (await again.refresh()).state is State.SCHEDULED
        async with app.worker():
            assert await job.result(timeout=10) == 2


@with_every_caller
async def test_savepoints(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        joined = task.using(connection=caller.connection)
        await caller.begin()
        kept = await joined.enqueue(1)
        await caller.run("savepoint one")
        gone = await joined.using(unique=Unique("k", scope="any")).enqueue(2)
        await caller.run("rollback to savepoint one")
        late = await joined.using(unique=Unique("k", scope="any")).enqueue(3)
        await caller.commit()
        found = [await app.jobs.get(job.id) for job in (kept, gone, late)]
        assert [job and job.payload for job in found] == ['{"a":1}', None, '{"a":3}']


@with_every_caller
async def test_unique_keys(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        for scope in ("waiting", "active", "any", "window"):
            unique = task.using(unique=Unique(scope, scope=scope, window=60 if scope == "window" else None))
            joined = unique.using(connection=caller.connection)
            await caller.begin()
            first = await joined.enqueue(1)
            second = await joined.enqueue(2)
            assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False), scope
            await caller.commit()
            third = await unique.enqueue(3)
            assert (third.id, third.duplicate) == (first.id, True), scope
            await caller.begin()
            one, two = await app.enqueue([unique.call(4), task.call(5)], connection=caller.connection)
            await caller.commit()
            assert (one.id, one.duplicate, two.duplicate) == (first.id, True, False), scope
        assert await app.jobs.count() == 8


@with_every_caller
async def test_long_lists_and_odd_texts(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        odd = task.using(key=ODD, tags=[ODD], meta={"m": ODD}, unique=Unique(ODD, scope="any"))
        await caller.begin()
        handles = await app.enqueue([odd.call(ODD + "\x00"), *map(task.call, range(700))], connection=caller.connection)
        assert len(handles) == 701
        assert await app.jobs.count() == 0
        await caller.commit()
        assert await app.jobs.count() == 701
        seen = await handles[0].refresh()
        outside = await odd.using(unique=None).enqueue(ODD + "\x00")
        like = await outside.refresh()
        assert (seen.payload, seen.key, seen.tags, seen.meta) == (like.payload, like.key, like.tags, like.meta)
        assert (await odd.enqueue(1)).id == seen.id


@with_every_caller
async def test_the_blocking_form(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        joined = task.using(connection=caller.connection)
        if caller.sync:

            def enqueue_and_commit():
                job = joined.sync.enqueue(1)
                caller.connection.commit()
                return job

            job = await asyncio.to_thread(enqueue_and_commit)
            assert (await job.refresh()).payload == '{"a":1}'
        else:
            await caller.begin()
            with pytest.raises(InvalidCall, match="belongs to an event loop"):
                await asyncio.to_thread(joined.sync.enqueue, 1)
            await caller.rollback()
        await asyncio.to_thread(app.sync.close)


# ---- each library's own savepoints -----------------------------------------------------------------
class Undo(Exception):
    pass


async def test_nested_transactions_of_psycopg_and_asyncpg(app, task, dsn):
    async with app:
        await app.jobs.count()
        for name in ("psycopg async", "asyncpg"):
            async with CALLERS[name](dsn) as caller:
                connection, joined = caller.connection, task.using(connection=caller.connection, queue=name)
                async with connection.transaction():
                    await joined.enqueue("outer")
                    with suppress(Undo):
                        async with connection.transaction():
                            await joined.enqueue("undone")
                            async with connection.transaction():
                                await joined.enqueue("undone with it")
                            raise Undo
                    async with connection.transaction():
                        await joined.enqueue("inner")
                    assert await app.jobs.count(queue=name) == 0
            found = (await app.jobs.find(queue=name)).items
            assert [job.payload for job in reversed(found)] == ['{"a":"outer"}', '{"a":"inner"}']


async def test_nested_transactions_of_sqlalchemy(app, task, dsn):
    async with app:
        await app.jobs.count()
        for name in ("Session", "Connection", "AsyncSession, asyncpg", "AsyncConnection, psycopg"):
            async with CALLERS[name](dsn) as caller:
                joined = task.using(connection=caller.connection, queue=name)
                with signals(await app._runtime.storage()) as told:
                    await joined.enqueue("outer")
                    for word, end in (("undone", "rollback"), ("inner", "commit")):
                        nested = caller.connection.begin_nested()
                        if not caller.sync:
                            await nested
                        await joined.enqueue(word)
                        ended = getattr(nested, end)()
                        if not caller.sync:
                            await ended
                    await stays(lambda name=name: name not in told, 0.1)  # a connection before it may have told twice
                    assert await app.jobs.count(queue=name) == 0
                    await caller.commit()
                    await eventually(lambda name=name: name in told)
            found = (await app.jobs.find(queue=name)).items
            assert [job.payload for job in reversed(found)] == ['{"a":"outer"}', '{"a":"inner"}']
