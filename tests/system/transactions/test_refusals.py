"""Connections that cannot carry jobs are refused before anything is written, and the caller's transaction goes on."""

import asyncio
import gc
import logging
import secrets
import sqlite3

import asyncpg
import psycopg
import psycopg_pool
import pytest
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import servers
from perdure import InvalidCall, Perdure, QueueFull, StoreError, Unique
from perdure.storage.contract import QueueCapacity, QueueSettings, Storage
from perdure.testing import ManualClock
from tests.support.real_servers import server

from .callers import CALLERS, with_every_caller
from .tools import schema_of


# ---- of a wrong kind -------------------------------------------------------------------------------
async def test_a_connection_to_sqlite(app, task, kind):
    async with app:
        await app.jobs.count()
        raw = sqlite3.connect(":memory:")
        engine = create_engine("sqlite://")
        with raw, Session(engine) as session, engine.connect() as connection:
            for stranger in (raw, session, connection):
                with pytest.raises(InvalidCall, match=r"is one to sqlite, the app's store is postgresql://"):
                    await task.using(connection=stranger).enqueue()
        raw.close()
        engine.dispose()


@pytest.mark.parametrize("name", ["psycopg", "psycopg async", "asyncpg", "Session", "AsyncConnection, asyncpg"])
async def test_a_connection_to_postgresql_for_a_store_on_sqlite(tmp_path, dsn, name):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def task(): ...

    async with app, CALLERS[name](dsn) as caller:
        await app.jobs.count()
        await caller.begin()
        with pytest.raises(InvalidCall, match=r"is one to postgresql, the app's store is .*jobs\.db"):
            await task.using(connection=caller.connection).enqueue()
        await caller.rollback()


async def test_what_has_no_transaction(app, task, dsn):
    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    pool = psycopg_pool.ConnectionPool(dsn, open=False)
    for stranger in (engine, sessionmaker(engine), pool):
        with pytest.raises(InvalidCall, match="give a connection or session of it"):
            await task.using(connection=stranger).enqueue()
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        with pytest.raises(InvalidCall, match=r"does not know psycopg\.Cursor"):
            await task.using(connection=cursor).enqueue()
    engine.dispose()


# ---- to another database ---------------------------------------------------------------------------
async def test_another_database_of_the_same_server(app, task, dsn):
    name = f"other_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            async with app:
                await app.jobs.count()
                with psycopg.connect(dsn, dbname=name) as connection:
                    with pytest.raises(
                        StoreError, match=rf"'{name}' \(127.0.0.1:\d+\), the app's store is postgresql:"
                    ):
                        await task.using(connection=connection).enqueue()
                    assert connection.execute("select 1").fetchone() == (1,)  # it goes on
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def test_a_copy_on_another_server(app, task, kind, tmp_path):
    with servers.start("postgres", within=tmp_path) as other:
        copy = Perdure(f"{other.url}?schema={schema_of(app)}")
        async with app, copy:
            await app.jobs.count()
            await copy.jobs.count()
            for name in ("psycopg", "asyncpg", "AsyncSession, psycopg"):
                async with CALLERS[name](other.url) as caller:
                    await caller.begin()
                    with pytest.raises(StoreError, match=r"'postgres' on another server .*only in their own database"):
                        await task.using(connection=caller.connection).enqueue()
                    assert await caller.fetch("select 1") == [(1,)]
                    await caller.rollback()
            assert await copy.jobs.count() == 0


async def test_the_same_server_by_another_name(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn, host="localhost", application_name="another") as connection:
            await task.using(connection=connection).enqueue()
        assert await app.jobs.count() == 1


async def test_the_same_server_after_a_restart(tmp_path):
    with servers.start("postgres", within=tmp_path) as own:
        app = Perdure(own.fresh())

        @app.task
        async def task(): ...

        async with app:
            for number in (1, 2):
                if number == 2:
                    own.restart()
                with psycopg.connect(own.url) as connection:
                    await app.jobs.count()
                    await task.using(connection=connection).enqueue()
                assert await app.jobs.count() == number


# ---- in no transaction, or in one that is lost -----------------------------------------------------
async def test_autocommit(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn, autocommit=True) as connection:
            joined = task.using(connection=connection)
            with pytest.raises(InvalidCall, match=r"autocommit .*with connection\.transaction"):
                await joined.enqueue()
            with connection.transaction():
                await joined.enqueue(1)
            with pytest.raises(InvalidCall, match="autocommit"):
                await asyncio.to_thread(joined.sync.enqueue)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            joined = task.using(connection=connection)
            with pytest.raises(InvalidCall, match=r"autocommit .*with connection\.transaction"):
                await joined.enqueue()
            async with connection.transaction():
                await joined.enqueue(2)
        connection = await asyncpg.connect(dsn)
        joined = task.using(connection=connection)
        with pytest.raises(InvalidCall, match=r"in no transaction.*async with connection\.transaction"):
            await joined.enqueue()
        async with connection.transaction():
            await joined.enqueue(3)
        await connection.close()
        assert await app.jobs.count() == 3
        await asyncio.to_thread(app.sync.close)


async def test_autocommit_of_sqlalchemy(app, task, dsn):
    async with app:
        await app.jobs.count()
        engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, Session(engine) as session:
            for joined in (connection, session):
                with pytest.raises(InvalidCall, match="without isolation_level=AUTOCOMMIT"):
                    await task.using(connection=joined).enqueue()
        engine.dispose()
        for driver in ("psycopg", "asyncpg"):
            engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
            async with engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(InvalidCall, match="without isolation_level=AUTOCOMMIT"):
                    await task.using(connection=connection).enqueue()
            await engine.dispose()
        assert await app.jobs.count() == 0


@with_every_caller
async def test_an_aborted_transaction(app, task, dsn, caller_of):
    async with app, caller_of(dsn) as caller:
        await app.jobs.count()
        joined = task.using(connection=caller.connection)
        await caller.begin()
        with pytest.raises(Exception, match="division by zero"):
            await caller.run("select 1 / 0")
        with pytest.raises(StoreError, match="aborted, because a statement in it failed before: roll it back"):
            await joined.enqueue()
        await caller.rollback()
        await caller.begin()
        await joined.enqueue()
        await caller.commit()
        assert await app.jobs.count() == 1


async def test_closed_connections(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn) as blocking:
            pass
        async with await psycopg.AsyncConnection.connect(dsn) as awaited:
            pass
        other = await asyncpg.connect(dsn)
        await other.close()
        for connection in (blocking, awaited, other):
            with pytest.raises(InvalidCall, match="connection= is closed"):
                await task.using(connection=connection).enqueue()


async def test_a_connection_that_broke(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as admin:
            await task.using(connection=connection).enqueue()
            admin.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
            with pytest.raises(StoreError, match="the enqueue on connection= failed"):
                await task.using(connection=connection).enqueue()
        assert await app.jobs.count() == 0


# ---- that may not write ----------------------------------------------------------------------------
async def test_a_read_only_transaction(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn) as connection:
            connection.read_only = True
            with pytest.raises(StoreError, match=r"is read-only .*begin one that may write"):
                await task.using(connection=connection).enqueue()
            assert connection.execute("select 1").fetchone() == (1,)
            connection.rollback()
            connection.read_only = False
            await task.using(connection=connection).enqueue()
            connection.commit()
            connection.read_only = True  # a connection that is known already
            with pytest.raises(StoreError, match=r"is read-only .*begin one that may write"):
                await task.using(connection=connection).enqueue()
        assert await app.jobs.count() == 1


async def test_a_role_without_privileges(app, task, dsn):
    role = f"weak_{secrets.token_hex(4)}"
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"create role {role}".encode())
            with psycopg.connect(dsn) as connection:
                connection.execute(f"set role {role}".encode())
                with pytest.raises(StoreError, match=f"needs USAGE on the schema {schema_of(app)}, SELECT and INSERT"):
                    await task.using(connection=connection).enqueue()
                assert connection.execute("select 1").fetchone() == (1,)
                schema = f'"{schema_of(app)}"'
                admin.execute(f"grant usage on schema {schema} to {role}".encode())
                named = ("jobs", "waiting", "held_keys", "kept_keys", "edges", "unresolved", "limit_notices")
                tables = ", ".join(f"{schema}.{table}" for table in named)
                admin.execute(f"grant select, insert on {tables} to {role}".encode())
                admin.execute(f"grant select on {schema}.queues to {role}".encode())
                parent = await task.using(connection=connection).enqueue()
                await task.using(connection=connection, unique=Unique("k"), after=[parent]).enqueue()
                connection.commit()
            assert await app.jobs.count() == 2
            admin.execute(f"drop owned by {role}".encode())
            admin.execute(f"drop role {role}".encode())


async def test_nothing_is_migrated_in_a_callers_transaction(kind, dsn):
    app = Perdure(server(kind).fresh())

    @app.task
    async def task(): ...

    with psycopg.connect(dsn) as connection:
        with pytest.raises(StoreError, match="perdure migrate"):
            await task.using(connection=connection).enqueue()
        found = connection.execute("select 1 from pg_namespace where nspname = %s", (schema_of(app),)).fetchall()
    assert found == []


async def test_tables_that_are_gone(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn) as connection:
            await task.using(connection=connection).enqueue()
            connection.commit()
            connection.execute(f'drop schema "{schema_of(app)}" cascade'.encode())
            connection.commit()
            for dropped in (connection, psycopg.connect(dsn)):
                with dropped, pytest.raises(StoreError, match="perdure migrate"):
                    await task.using(connection=dropped).enqueue()


# ---- what else the caller should know --------------------------------------------------------------
@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "Session"])
async def test_a_session_that_does_not_wait_for_the_disk_is_warned_of_once(app, task, dsn, caplog, name):
    async with app, CALLERS[name](dsn) as caller:
        await app.jobs.count()
        await caller.begin()
        await caller.run("set synchronous_commit = off")
        await caller.commit()
        with caplog.at_level(logging.WARNING, "perdure"):
            for _ in range(3):
                await caller.begin()
                await task.using(connection=caller.connection).enqueue()
                await caller.commit()
        told = [record.getMessage() for record in caplog.records if "synchronous_commit=off" in record.getMessage()]
        assert len(told) == 1
        assert "may be lost when the server crashes; run SET synchronous_commit = on" in told[0]


async def test_every_session_that_does_not_wait_for_the_disk_is_warned_of(app, task, dsn, caplog):
    """One that is gone does not silence the next, which may stand at its place in memory."""
    async with app:
        await app.jobs.count()
        with caplog.at_level(logging.WARNING, "perdure"):
            for _ in range(20):
                with psycopg.connect(dsn, options="-c synchronous_commit=off") as connection:
                    await task.using(connection=connection).enqueue()
                del connection
                gc.collect()
        told = [record for record in caplog.records if "synchronous_commit=off" in record.getMessage()]
        assert len(told) == 20


async def test_a_full_queue_is_told_and_never_waited_for(app, task, dsn):
    async with app:
        for policy in ("reject", "wait"):
            await app.queues.configure(policy, max_depth=1, on_full=policy)
            await task.using(queue=policy).enqueue()
            with psycopg.connect(dsn) as connection:
                with pytest.raises(QueueFull, match="nothing waits"):
                    await asyncio.wait_for(task.using(queue=policy, connection=connection).enqueue(), 20)
                await task.using(queue="free", connection=connection).enqueue()
        assert await app.jobs.count(queue="free") == 2


async def test_what_is_configured_counts_at_once(app, task, dsn):
    """What is known of a queue may be a second old, but not older than what this app has just said about it."""
    async with app:
        await app.queues.configure("small", max_depth=1, on_full="wait")
        await task.using(queue="small").enqueue()
        with psycopg.connect(dsn) as connection:
            with pytest.raises(QueueFull):
                await task.using(queue="small", connection=connection).enqueue()
            await app.queues.configure("small", max_depth=1, on_full="drop")
            assert (await task.using(queue="small", connection=connection).enqueue()).dropped
            await app.queues.configure("small")
            assert not (await task.using(queue="small", connection=connection).enqueue()).dropped


@pytest.mark.parametrize("policy", ["reject", "wait", "drop"])
@pytest.mark.parametrize("scope", ["waiting", "active", "any", "window"])
async def test_a_duplicate_needs_no_room(app, task, dsn, policy, scope):
    """As outside a transaction: who stands for a job is found before its room is looked for."""
    async with app:
        await app.queues.configure("small", max_depth=1, on_full=policy)
        once = task.using(queue="small", unique=Unique("k", scope=scope, window=60 if scope == "window" else None))
        owner = await once.enqueue(1)
        with psycopg.connect(dsn) as connection:
            joined = once.using(connection=connection)
            listed, _ = await app.enqueue([once.call(3), task.call(4)], connection=connection)
            for again in [await joined.enqueue(2), listed]:
                assert (again.id, again.duplicate, again.dropped) == (owner.id, True, False)
        assert await app.jobs.count() == 2


async def test_a_key_whose_window_is_over_has_no_owner_that_needs_no_room(kind, dsn):
    clock = ManualClock()
    app = Perdure(server(kind).fresh(), clock=clock)

    @app.task
    async def task() -> None: ...

    async with app:
        await app.queues.configure("small", max_depth=1)
        once = task.using(queue="small", unique=Unique("k", scope="window", window=60))
        await once.enqueue()
        clock.advance(61)
        with psycopg.connect(dsn) as connection, pytest.raises(QueueFull, match="nothing waits"):
            await once.using(connection=connection).enqueue()


async def test_room_is_counted_in_bounded_queues_alone(app, task):
    async with app:
        await app.queues.configure("small", max_depth=2)
        await app.queues.configure("large", max_depth=100)
        for queue, options in [
            ("small", {}),
            ("small", {"delay": 60}),
            ("large", {"delay": 60}),
            ("large", {}),
            ("free", {}),
        ]:
            await task.using(queue=queue, **options).enqueue()
        store = await app._runtime.storage()
        assert (
            await store.queue_capacities()
            == await Storage.queue_capacities(store)
            == {
                "small": QueueCapacity(QueueSettings("small", max_depth=2), 0),
                "large": QueueCapacity(QueueSettings("large", max_depth=100), 98),
            }
        )


async def test_sessions_of_any_make(app, task, dsn):
    """Row factories, cursors, encodings, codecs and pipelines of the caller's own."""

    def rows_as_texts(cursor):
        return lambda values: "a row"

    async with app:
        await app.jobs.count()
        makes = [
            {"row_factory": psycopg.rows.dict_row},
            {"row_factory": rows_as_texts},
            {"cursor_factory": psycopg.ClientCursor},
            {"cursor_factory": psycopg.RawCursor},
            {"client_encoding": "LATIN1"},
            {"client_encoding": "SQL_ASCII"},
            {"options": "-c search_path=pg_temp -c datestyle=German -c timezone=Asia/Tokyo -c intervalstyle=iso_8601"},
            {"prepare_threshold": 0},
            {"prepare_threshold": None},
        ]
        for number, make in enumerate(makes):
            unique = task.using(unique=Unique(f"ключ {number}"))
            with psycopg.connect(dsn, **make) as connection:
                first = await unique.using(connection=connection).enqueue(f"日本 {number}")
                assert (await unique.using(connection=connection).enqueue(f"日本 {number}")).id == first.id
            assert (await first.refresh()).payload == f'{{"a":"日本 {number}"}}'
        connection = await asyncpg.connect(dsn)
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, schema="pg_catalog", encoder=repr, decoder=repr)
        async with connection.transaction():
            await task.using(connection=connection).enqueue("日本")
        await connection.close()
        with psycopg.connect(dsn) as connection, connection.pipeline():
            connection.execute("select 1")
            await task.using(connection=connection).enqueue("pipeline")
        with psycopg.connect(dsn, autocommit=True) as connection, connection.pipeline():
            connection.execute("select 1")
            with pytest.raises(InvalidCall, match="autocommit"):
                await task.using(connection=connection).enqueue("pipeline")
            with connection.transaction():
                await task.using(connection=connection).enqueue("pipeline")
        assert await app.jobs.count() == len(makes) + 3
