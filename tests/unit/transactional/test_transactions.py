"""Enqueue in the caller's own transaction: committed → there; rolled back → nothing, not even a signal."""

import asyncio
import sqlite3

import pytest

from perdure import Context, InvalidCall, NotFound, Perdure, QueueFull, State, StoreError, Unique, chain
from perdure.testing import ManualClock
from tests.support.waiting import eventually, stays
from tests.system.transactions.tools import signals, tell_django


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path):
    return Perdure(f"sqlite:///{path}")


@pytest.fixture
def task(app):
    @app.task
    async def task(a: int = 0) -> int:
        return a

    return task


_opened: list[sqlite3.Connection] = []


def connect(*args, **options) -> sqlite3.Connection:
    _opened.append(sqlite3.connect(*args, **options))
    return _opened[-1]


@pytest.fixture(autouse=True)
def _closed():
    yield
    while _opened:
        _opened.pop().close()


async def ready(app):
    """The tables are there, and the store is open in this loop."""
    await app.jobs.count()
    connection = connect(app._runtime.loops.file, timeout=0.1)
    connection.execute("create table if not exists mine (a)")
    connection.commit()
    return connection


# ---- sqlite3 ---------------------------------------------------------------------------------------
async def test_committed_is_there_and_rolled_back_is_not(app, task):
    connection = await ready(app)
    joined = task.using(connection=connection, queue="q", tags=["x"], delay=0)
    connection.execute("insert into mine values (1)")
    undone = await joined.enqueue(1)
    assert await app.jobs.get(undone.id) is None
    connection.rollback()
    assert await app.jobs.count() == 0
    job = await joined.enqueue(2)
    assert connection.in_transaction  # begun by its own INSERT, and left to the caller
    connection.commit()
    seen = await job.refresh()
    assert (seen.state, seen.queue, seen.tags, seen.payload) == (State.READY, "q", ("x",), '{"a":2}')
    async with app.worker():
        assert await job.result(timeout=30) == 2
    connection.close()


async def test_lists_in_a_transaction(app, task):
    connection = await ready(app)
    handles = await app.enqueue([task.call(n) for n in range(700)], connection=connection)
    assert len(handles) == 700
    assert await app.jobs.count() == 0
    connection.commit()
    assert await app.jobs.count() == 700
    other = connect(app._runtime.loops.file)
    with pytest.raises(InvalidCall, match="different connections"):
        await app.enqueue([task.using(connection=connection).call(), task.using(connection=other).call()])
    with pytest.raises(InvalidCall, match="some do not"):
        await app.enqueue([task.using(connection=connection).call(), task.call()])
    connection.close()
    other.close()


@pytest.mark.parametrize("scope", ["waiting", "active", "any", "window"])
async def test_unique_keys_in_a_transaction(app, task, scope):
    connection = await ready(app)
    unique = task.using(unique=Unique("k", scope=scope, window=60 if scope == "window" else None))
    joined = unique.using(connection=connection)
    first = await joined.enqueue(1)
    second = await joined.enqueue(2)
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    connection.commit()
    third = await unique.enqueue(3)
    assert (third.id, third.duplicate) == (first.id, True)
    one, two = await app.enqueue([joined.call(4), task.using(connection=connection).call(5)])
    connection.commit()
    assert (one.id, one.duplicate, two.duplicate) == (first.id, True, False)
    assert await app.jobs.count() == 2
    connection.close()


async def test_autocommit_is_refused(app, task):
    await ready(app)
    connection = connect(app._runtime.loops.file, isolation_level=None)
    joined = task.using(connection=connection)
    with pytest.raises(InvalidCall, match="BEGIN IMMEDIATE"):
        await joined.enqueue()
    connection.execute("begin")
    await joined.enqueue()
    connection.execute("commit")
    assert await app.jobs.count() == 1
    connection.close()


async def test_another_database_is_refused(app, task, tmp_path):
    await ready(app)
    for name in (tmp_path / "other.db", ":memory:"):
        connection = connect(name)
        with pytest.raises(StoreError, match="only in their own database"):
            await task.using(connection=connection).enqueue()
        connection.close()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:"])
async def test_a_store_in_memory_cannot_be_joined(url, path):
    app = Perdure(url)

    @app.task
    async def task(): ...

    connection = connect(path)
    with pytest.raises(StoreError):
        await task.using(connection=connection).enqueue()
    connection.close()
    await app.close()


@pytest.mark.parametrize("locked", [False, True])
async def test_nothing_is_migrated_in_a_callers_transaction(app, task, path, locked):
    connection = connect(path)
    connection.execute("create table mine (a)")
    connection.execute("insert into mine values (1)")
    if not locked:
        connection.commit()
    with pytest.raises(StoreError, match="perdure migrate"):
        await task.using(connection=connection).enqueue()
    connection.commit()
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    assert tables == ["mine"]
    connection.close()


async def test_busy_tells_to_begin_immediate(app, task):
    connection = await ready(app)
    other = connect(app._runtime.loops.file, timeout=0)
    other.execute("begin")
    other.execute("select * from mine").fetchall()
    connection.execute("begin immediate")
    with pytest.raises(StoreError, match="BEGIN IMMEDIATE"):
        await task.using(connection=other).enqueue()
    connection.close()
    other.close()


async def test_a_full_queue_is_told_and_never_waited_for(app, task):
    connection = await ready(app)
    for policy in ("reject", "wait"):
        await app.queues.configure(policy, max_depth=1, on_full=policy)
        await task.using(queue=policy).enqueue()
        with pytest.raises(QueueFull, match="nothing waits"):
            await asyncio.wait_for(task.using(queue=policy, connection=connection).enqueue(), 20)
        (await app._runtime.open()).counted_until = 0
    connection.commit()
    connection.close()


async def test_a_full_queue_that_drops_does_so_here_too(app, task):
    connection = await ready(app)
    await app.queues.configure("clicks", max_depth=2, on_full="drop", drop_below=5)
    await task.using(queue="clicks").enqueue()
    low, high = task.using(queue="clicks"), task.using(queue="clicks", priority=5)
    handles = await app.enqueue([low.call(), low.call(), task.call()], connection=connection)
    assert [job.dropped for job in handles] == [False, True, False]
    with pytest.raises(QueueFull, match="nothing waits"):
        await app.enqueue([low.call(), high.call()], connection=connection)
    with pytest.raises(QueueFull, match="another of this enqueue waits for"):
        await app.enqueue(chain(low.call(), task.call()), connection=connection)
    connection.commit()
    assert await app.jobs.count(queue="clicks") == 2
    with pytest.raises(NotFound, match="dropped"):
        await handles[1].refresh()
    connection.close()


@pytest.mark.parametrize("policy", ["reject", "wait", "drop"])
@pytest.mark.parametrize("scope", ["waiting", "active", "any", "window"])
async def test_a_duplicate_needs_no_room(app, task, policy, scope):
    """As outside a transaction: who stands for a job is found before its room is looked for."""
    connection = await ready(app)
    await app.queues.configure("small", max_depth=1, on_full=policy)
    once = task.using(queue="small", unique=Unique("k", scope=scope, window=60 if scope == "window" else None))
    owner = await once.enqueue(1)
    joined = once.using(connection=connection)
    listed, _ = await app.enqueue([once.call(3), task.call(4)], connection=connection)
    for again in [await joined.enqueue(2), listed]:
        assert (again.id, again.duplicate, again.dropped) == (owner.id, True, False)
    connection.commit()
    assert await app.jobs.count() == 2


async def test_duplicates_leave_their_room_to_others(app, task):
    connection = await ready(app)
    await app.queues.configure("small", max_depth=2, on_full="drop")
    plain = task.using(queue="small")
    owner = await plain.using(unique=Unique("old")).enqueue()
    calls = [
        plain.using(unique=Unique("old")).call(),
        plain.using(unique=Unique("new")).call(),
        plain.using(unique=Unique("new")).call(),
        plain.call(),
    ]
    handles = await app.enqueue(calls, connection=connection)
    assert [(job.duplicate, job.dropped) for job in handles] == [
        (True, False),
        (False, False),
        (True, False),
        (False, True),
    ]
    assert (handles[0].id, handles[2].id) == (owner.id, handles[1].id)
    connection.commit()
    assert await app.jobs.count(queue="small") == 2


async def test_a_key_whose_window_is_over_has_no_owner_that_needs_no_room(path):
    clock = ManualClock()
    app = Perdure(f"sqlite:///{path}", clock=clock)

    @app.task
    async def task() -> None: ...

    connection = await ready(app)
    await app.queues.configure("small", max_depth=1)
    once = task.using(queue="small", unique=Unique("k", scope="window", window=60))
    await once.enqueue()
    clock.advance(61)
    with pytest.raises(QueueFull, match="nothing waits"):
        await once.using(connection=connection).enqueue()


async def test_connections_of_strangers_are_refused(app, task):
    for stranger in (5, "sqlite:///x", object(), app):
        with pytest.raises(InvalidCall, match="connection= does not know"):
            await task.using(connection=stranger).enqueue()


async def test_a_connection_of_another_thread_is_told(app, task):
    await ready(app)
    connection = await asyncio.to_thread(sqlite3.connect, app._runtime.loops.file)
    with pytest.raises(InvalidCall, match="enqueue where the connection lives"):
        await task.using(connection=connection).enqueue()
    await asyncio.to_thread(connection.close)  # the loop's one helper thread, which made it


def test_the_blocking_form_uses_the_connection_in_the_callers_thread(app, task):
    assert app.jobs.sync.count() == 0
    connection = connect(app._runtime.loops.file)
    job = task.using(connection=connection).sync.enqueue(1)
    assert app.sync.enqueue([task.call(2)], connection=connection)
    assert app.jobs.sync.count() == 0
    connection.commit()
    assert job.sync.refresh().payload == '{"a":1}'
    assert app.jobs.sync.count() == 2
    connection.close()
    app.sync.close()


async def test_no_signal_for_what_was_rolled_back(app, task):
    connection = await ready(app)
    storage = await app._runtime.storage()
    with signals(storage) as told:
        await task.using(connection=connection).enqueue()
        connection.rollback()
        await stays(lambda: told == [], 0.05)
        await task.using(connection=connection).enqueue()
        connection.commit()
        await app.signal("default")
        assert told == ["default"]
    connection.close()


# ---- apsw ------------------------------------------------------------------------------------------
async def test_apsw(path):
    apsw = pytest.importorskip("apsw")
    app = Perdure(f"sqlite+apsw:///{path}")

    @app.task
    async def task(a: int = 0): ...

    assert await app.jobs.count() == 0
    connection = apsw.Connection(str(path))
    joined = task.using(connection=connection)
    with pytest.raises(InvalidCall, match="BEGIN IMMEDIATE"):
        await joined.enqueue()
    connection.execute("begin immediate")
    await joined.enqueue(1)
    connection.execute("rollback")
    assert await app.jobs.count() == 0
    with connection:
        job = await joined.enqueue(2)
    assert (await job.refresh()).payload == '{"a":2}'
    connection.close()
    await app.close()


async def test_two_sqlite_libraries_are_not_mixed(path, app, task):
    apsw = pytest.importorskip("apsw")
    await app.jobs.count()
    connection = apsw.Connection(":memory:")
    connection.execute("begin")
    with pytest.raises(InvalidCall, match="two SQLite libraries"):
        await task.using(connection=connection).enqueue()
    other = Perdure(f"sqlite+apsw:///{path.with_name('other.db')}")

    @other.task
    async def apart(): ...

    await other.jobs.count()
    stdlib = connect(":memory:")
    with pytest.raises(InvalidCall, match="two SQLite libraries"):
        await apart.using(connection=stdlib).enqueue()
    stdlib.close()
    await other.close()


# ---- SQLAlchemy ------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["session", "connection", "scoped"])
async def test_sqlalchemy(app, task, kind):
    alchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    await app.jobs.count()
    engine = alchemy.create_engine(f"sqlite:///{app._runtime.loops.file}")
    session = {
        "session": lambda: orm.Session(engine),
        "connection": engine.connect,
        "scoped": lambda: orm.scoped_session(orm.sessionmaker(engine)),
    }[kind]()
    joined = task.using(connection=session)
    with signals(await app._runtime.storage()) as told:
        await joined.enqueue(1)
        session.rollback()
        await stays(lambda: told == [], 0.3)
        assert await app.jobs.count() == 0
        first = await joined.enqueue(2)
        await joined.using(queue="other").enqueue(3)
        session.commit()
        await eventually(lambda: {"default", "other"} == set(told))
        assert (await first.refresh()).payload == '{"a":2}'
        told.clear()
        session.execute(alchemy.text("select 1"))
        session.commit()
        await stays(lambda: "elsewhere" not in told, 0.3)
    session.close() if kind != "scoped" else session.remove()
    engine.dispose()


async def test_sqlalchemy_savepoints_do_not_signal_early(app, task):
    alchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    await app.jobs.count()
    engine = alchemy.create_engine(f"sqlite:///{app._runtime.loops.file}")
    with signals(await app._runtime.storage()) as told, orm.Session(engine) as session:
        with session.begin_nested():
            await task.using(connection=session).enqueue(1)
        await stays(lambda: told == [], 0.05)
        session.commit()
        await eventually(lambda: told)
        await stays(lambda: told == ["default"], 0.05)
    engine.dispose()


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_sqlalchemy_async(app, task, kind):
    pytest.importorskip("aiosqlite")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    await app.jobs.count()
    engine = create_async_engine(f"sqlite+aiosqlite:///{app._runtime.loops.file}")
    with signals(await app._runtime.storage()) as told:
        async with AsyncSession(engine) if kind == "session" else engine.connect() as session:
            joined = task.using(connection=session)
            await joined.enqueue(1)
            await session.rollback()
            await stays(lambda: told == [], 0.3)
            job = await joined.enqueue(2)
            with pytest.raises(InvalidCall, match="belongs to an event loop"):
                await asyncio.to_thread(joined.sync.enqueue, 3)
            await session.commit()
            await eventually(lambda: "default" in told)
            assert (await job.refresh()).payload == '{"a":2}'
    await engine.dispose()
    await app.close()


async def test_sqlalchemy_autocommit_and_other_databases_are_refused(app, task, tmp_path):
    alchemy = pytest.importorskip("sqlalchemy")
    await app.jobs.count()
    engine = alchemy.create_engine(f"sqlite:///{app._runtime.loops.file}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        with pytest.raises(InvalidCall, match="AUTOCOMMIT"):
            await task.using(connection=connection).enqueue()
    engine.dispose()
    engine = alchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with engine.connect() as connection:
        with pytest.raises(StoreError, match="only in their own database"):
            await task.using(connection=connection).enqueue()
    engine.dispose()


# ---- Django ----------------------------------------------------------------------------------------
DJANGO = """
for line in (connection, connections["default"]):
    told.clear()
    before = app.jobs.sync.count()
    refused(InvalidCall, "transaction.atomic", lambda: task.using(connection=line).sync.enqueue(0))
    try:
        with transaction.atomic():
            task.using(connection=line).sync.enqueue(1)
            raise KeyError
    except KeyError:
        pass
    time.sleep(0.1)
    assert told == []
    assert app.jobs.sync.count() == before
    with transaction.atomic():
        with transaction.atomic():
            job = task.using(connection=line).sync.enqueue(2)
        assert told == []
    expect(["default"])
    assert job.sync.refresh().payload == '{"a":2}'

async def main():
    try:
        await task.using(connection=connection).enqueue(3)
    except InvalidCall as error:
        assert "blocking form" in str(error), error
    else:
        raise AssertionError

asyncio.run(main())
connection.close()
app.sync.close()
"""


def test_django(path):
    pytest.importorskip("django")
    tell_django(DJANGO, f"sqlite:///{path}", {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}})


# ---- the handler's own transaction -----------------------------------------------------------------
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("outcome", ["returns", "raises", "returns what cannot be stored"])
@pytest.mark.parametrize("how", ["async", "blocking"])
async def test_a_handlers_tx(path, memory, outcome, how):
    app = Perdure("memory://" if memory else f"sqlite:///{path}", max_attempts=1)

    @app.task
    async def follower(a: int): ...

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> object:
        tx = await ctx.transaction()
        await follower.using(connection=tx, queue="later").enqueue(1)
        await app.enqueue([follower.using(queue="later").call(2)], connection=tx)
        if not memory:  # there it would wait for itself
            with pytest.raises(InvalidCall, match="connection=tx"):
                await follower.enqueue(3)
        if outcome == "raises":
            raise ValueError
        return None if outcome == "returns" else object()

    @app.task(name="blocking")
    def blocking(ctx: Context) -> object:
        tx = ctx.sync.transaction()
        follower.using(connection=tx, queue="later").sync.enqueue(1)
        app.sync.enqueue([follower.using(queue="later").call(2)], connection=tx.sync)
        if not memory:
            with pytest.raises(InvalidCall, match="connection=tx"):
                follower.sync.enqueue(3)
        if outcome == "raises":
            raise ValueError
        return None if outcome == "returns" else object()

    task = asynchronous if how == "async" else blocking
    async with app.worker(queues=["default"]):
        job = await task.enqueue()
        seen = [each async for each in job.watch(timeout=10)][-1]
    assert seen.state is (State.SUCCEEDED if outcome == "returns" else State.DEAD), seen.errors
    assert await app.jobs.count(queue="later") == (2 if outcome == "returns" else 0)
    await app.close()
