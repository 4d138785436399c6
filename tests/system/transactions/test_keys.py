"""Unique keys of callers' transactions that meet: one job for a key, whoever commits; conflicts are theirs to repeat."""

import asyncio

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from perdure import Unique
from perdure.transactional.driver_adapters import AsyncPsycopgLine
from tests.support.waiting import eventually, stays

from .tools import schema_of

SCOPES = ["waiting", "active", "any", "window"]


def unique(key, scope):
    return Unique(key, scope=scope, window=60 if scope == "window" else None)


async def waiting(dsn, connection):
    """Until this connection waits for another one."""
    pid = connection.info.backend_pid if hasattr(connection, "info") else connection.get_server_pid()

    async def blocked():
        rows = await (await watcher.execute("select cardinality(pg_blocking_pids(%s)) > 0", (pid,))).fetchone()
        return rows[0]

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher:
        await eventually(blocked)


async def opened(dsn, **options):
    return await psycopg.AsyncConnection.connect(dsn, **options)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("first_commits", [True, False])
async def test_two_at_once(app, task, dsn, scope, first_commits):
    async with app, await opened(dsn) as one, await opened(dsn) as two:
        await app.jobs.count()
        same = task.using(unique=unique("k", scope))
        first = await same.using(connection=one).enqueue(1)
        second = asyncio.create_task(same.using(connection=two).enqueue(2))
        await waiting(dsn, two)
        await (one.commit() if first_commits else one.rollback())
        handle = await second
        await two.commit()
        assert handle.duplicate is first_commits
        assert (handle.id == first.id) is first_commits
        assert [(job.id, job.payload) for job in (await app.jobs.find()).items] == [
            (first.id, '{"a":1}') if first_commits else (handle.id, '{"a":2}')
        ]


@pytest.mark.parametrize("scope", SCOPES)
async def test_an_open_transaction_and_an_enqueue_of_our_own(app, task, dsn, scope):
    """The store's own enqueue waits for the caller's key, too, and sees what became of it."""
    async with app, await opened(dsn) as one:
        await app.jobs.count()
        same = task.using(unique=unique("k", scope))
        first = await same.using(connection=one).enqueue(1)
        outside = asyncio.create_task(same.enqueue(2))
        await stays(lambda: not outside.done(), 0.1)
        await one.commit()
        assert (await outside).id == first.id


@pytest.mark.parametrize("scope", SCOPES)
async def test_keys_of_one_list_are_taken_in_order(app, task, dsn, scope):
    """Two lists in opposite order: each is one step, in the order of the keys, so nobody waits in a circle."""
    async with app, await opened(dsn) as one, await opened(dsn) as two:
        await app.jobs.count()
        for round in range(5):
            keys = [f"{round} {number:03}" for number in range(100)]
            up = [task.using(unique=unique(key, scope)).call(1) for key in keys]
            down = [task.using(unique=unique(key, scope)).call(2) for key in reversed(keys)]

            async def run(connection, calls):
                handles = await app.enqueue(calls, connection=connection)
                await connection.commit()
                return handles

            first, second = await asyncio.gather(run(one, up), run(two, down))
            assert [handle.id for handle in first] == [handle.id for handle in reversed(second)]
            assert await app.jobs.count() == 100 * (round + 1)


@pytest.mark.parametrize("scope", SCOPES)
async def test_lists_in_opposite_order_that_both_have_to_wait_do_not_wait_for_each_other(app, task, dsn, scope):
    """A third transaction has a key in the middle, so both lists stop half-way."""
    async with app, await opened(dsn) as third, await opened(dsn) as one, await opened(dsn) as two:
        await app.jobs.count()
        await task.using(unique=unique("b", scope), connection=third).enqueue(0)
        up = [task.using(unique=unique(key, scope)).call(1) for key in "abc"]
        down = [task.using(unique=unique(key, scope)).call(2) for key in "cba"]
        first = asyncio.create_task(app.enqueue(up, connection=one))
        await waiting(dsn, one)
        second = asyncio.create_task(app.enqueue(down, connection=two))
        await waiting(dsn, two)
        await third.rollback()
        handles = await first
        await one.commit()
        assert [handle.id for handle in handles] == [handle.id for handle in reversed(await second)]
        await two.commit()
        assert await app.jobs.count() == 3


async def test_opposite_orders_in_several_steps_are_the_callers_to_repeat(app, task, dsn):
    """The error is the driver's own, so that the loops that callers have for it work."""
    async with app, await opened(dsn) as one, await opened(dsn) as two:
        await app.jobs.count()

        def same(connection, key):
            return task.using(unique=unique(key, "any"), connection=connection).enqueue()

        await same(one, "a")
        await same(two, "b")
        results = await asyncio.gather(same(one, "b"), same(two, "a"), return_exceptions=True)
        (error,) = [result for result in results if isinstance(result, BaseException)]
        assert isinstance(error, psycopg.errors.DeadlockDetected)
        assert "repeat all of it" in error.__notes__[0]
        loser = one if error is results[0] else two
        winner = two if loser is one else one
        await loser.rollback()
        await winner.commit()
        assert await app.jobs.count() == 2
        for key in "ab":
            assert (await same(loser, key)).duplicate
        await loser.commit()
        assert await app.jobs.count() == 2


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("scope", SCOPES)
async def test_stricter_isolation(app, task, dsn, level, scope):
    async with app, await opened(dsn) as strict:
        await app.jobs.count()
        await strict.set_isolation_level(psycopg.IsolationLevel[level])
        same = task.using(unique=unique("k", scope))
        job = await task.using(connection=strict).enqueue(1)
        mine = await task.using(connection=strict, unique=unique("mine", scope)).enqueue(2)
        assert not mine.duplicate
        owner = await same.enqueue(3)  # committed after the strict one has begun
        with pytest.raises(psycopg.errors.SerializationFailure):
            await same.using(connection=strict).enqueue(4)
        await strict.rollback()
        assert await app.jobs.count() == 1
        job = await task.using(connection=strict).enqueue(1)
        assert (await same.using(connection=strict).enqueue(4)).id == owner.id
        await strict.commit()
        assert (await job.refresh()).payload == '{"a":1}'
        assert await app.jobs.count() == 2


async def test_conflicts_of_other_libraries_are_their_own(app, task, dsn):
    same = task.using(unique=unique("k", "active"))
    async with app:
        await app.jobs.count()
        connection = await asyncpg.connect(dsn)
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        await connection.fetch("select 1")
        engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), isolation_level="REPEATABLE READ")
        with Session(engine) as session:
            session.connection().exec_driver_sql("select 1")
            await same.enqueue()
            with pytest.raises(asyncpg.SerializationError):
                await same.using(connection=connection).enqueue()
            with pytest.raises(DBAPIError) as told:
                await same.using(connection=session).enqueue()
            assert told.value.orig.sqlstate == "40001"
        await transaction.rollback()
        await connection.close()
        engine.dispose()


def after_the_second_statement(monkeypatch, happens):
    """Something that others do while a caller's enqueue is between the taking of its key and the storing of its job."""
    execute = AsyncPsycopgLine.execute
    said = []

    async def interrupted(line, statement):
        rows = await execute(line, statement)
        said.append(statement)
        if len(said) == 2:  # the question, then the taking of the key
            await happens()
        return rows

    monkeypatch.setattr(AsyncPsycopgLine, "execute", interrupted)


async def test_a_key_that_becomes_free_between_the_statements(app, task, dsn, monkeypatch):
    """Taken at the first look and free at the last: then the job is stored, and not lost between the two."""
    async with app, await opened(dsn) as one:
        same = task.using(unique=unique("k", "active"))
        owner = await same.enqueue(1)
        after_the_second_statement(monkeypatch, owner.cancel)
        handle = await same.using(connection=one).enqueue(2)
        await one.commit()
        assert (handle.duplicate, handle.id != owner.id) == (False, True)
        assert (await handle.refresh()).payload == '{"a":2}'


async def test_a_window_that_ends_between_the_statements(app, task, dsn, monkeypatch):
    async def end():
        async with await opened(dsn, autocommit=True) as other:
            await other.execute(f'update "{schema_of(app)}".kept_keys set ends = 1'.encode())

    async with app, await opened(dsn) as one:
        same = task.using(unique=unique("k", "window"))
        owner = await same.enqueue(1)
        after_the_second_statement(monkeypatch, end)
        handle = await same.using(connection=one).enqueue(2)
        await one.commit()
        assert (handle.duplicate, handle.id) == (True, owner.id)
        assert (await same.using(connection=one).enqueue(3)).duplicate is False
        await one.commit()
