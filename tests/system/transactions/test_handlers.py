"""`ctx.transaction()` on PostgreSQL with a real worker: rows, followers and completion are committed together, or none."""

import asyncio
import sys

import psycopg
import pytest

from perdure import Context, Perdure, State, StoreError
from perdure.core.ids import new_stamp
from tests.support.real_servers import server
from tests.support.waiting import eventually, stays

from .tools import schema_of


@pytest.fixture
def app(kind):
    return Perdure(server(kind).fresh(), max_attempts=1)


@pytest.fixture
def table(dsn):
    """A table of the user's own."""
    name = f"mine_{new_stamp():x}".replace("-", "_")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create table {name} (a integer primary key, b text)".encode())
        yield name
        connection.execute(f"drop table {name}".encode())


def rows(dsn, table):
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"select a, b from {table} order by a".encode()).fetchall()


async def ended(job, seconds=15):
    return [each async for each in job.watch(timeout=seconds)][-1]


@pytest.mark.parametrize("how", ["async", "blocking"])
@pytest.mark.parametrize(
    "outcome", ["returns", "raises", "fails in SQL", "swallows an error of SQL", "result cannot be stored"]
)
async def test_rows_and_completion(app, dsn, table, how, outcome):
    @app.task
    async def follower(a: int): ...

    def over() -> object:
        if outcome == "raises":
            raise ValueError
        return object() if outcome == "result cannot be stored" else {"n": 1}

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> object:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (%s, %s)", (1, "100 %"))
        await tx.execute(f"insert into {table} values (2, 'a % alone')")
        await tx.execute(f"update {table} set b = %(b)s where a = 2", {"b": "two"})
        assert await tx.execute(f"select a, b from {table} order by a") == [(1, "100 %"), (2, "two")]
        await follower.using(connection=tx, queue="later").enqueue(1)
        await app.enqueue([follower.using(queue="later").call(2)], connection=tx)
        assert await app.jobs.count(queue="later") == 0
        assert await ctx.transaction() is tx
        await ctx.progress(50)  # a word beside the transaction waits for nobody here
        if outcome == "fails in SQL":
            await tx.execute(f"insert into {table} values (1, 'again')")
        if outcome == "swallows an error of SQL":
            with pytest.raises(StoreError, match="division by zero"):
                await tx.execute("select 1 / 0")
        return over()

    @app.task(name="blocking")
    def blocking(ctx: Context) -> object:
        tx = ctx.sync.transaction()
        tx.sync.execute(f"insert into {table} values (%s, %s)", (1, "100 %"))
        tx.sync.execute(f"insert into {table} values (2, 'two')")
        assert tx.sync.execute(f"select a, b from {table} order by a") == [(1, "100 %"), (2, "two")]
        follower.using(connection=tx, queue="later").sync.enqueue(1)
        app.sync.enqueue([follower.using(queue="later").call(2)], connection=tx.sync)
        assert app.jobs.sync.count(queue="later") == 0
        ctx.sync.progress(50)
        if outcome == "fails in SQL":
            tx.sync.execute(f"insert into {table} values (1, 'again')")
        if outcome == "swallows an error of SQL":
            with pytest.raises(StoreError, match="division by zero"):
                tx.sync.execute("select 1 / 0")
        return over()

    async with app, app.worker(queues=["default"]):
        job = await (asynchronous if how == "async" else blocking).enqueue()
        seen = await ended(job)
    if outcome == "returns":
        assert (seen.state, seen.result) == (State.SUCCEEDED, {"n": 1}), seen.errors
        assert rows(dsn, table) == [(1, "100 %"), (2, "two")]
        assert await app.jobs.count(queue="later") == 2
    else:
        kind = {"raises": "ValueError", "result cannot be stored": "InvalidCall"}.get(outcome, "StoreError")
        assert (seen.state, seen.errors[-1].kind) == (State.DEAD, kind), seen.errors
        assert rows(dsn, table) == []
        assert await app.jobs.count(queue="later") == 0
    if outcome == "swallows an error of SQL":
        assert "a statement in it failed" in seen.errors[-1].message, seen.errors
    await app.close()
    await asyncio.to_thread(app.sync.close)


async def test_followers_run_after_the_commit(app, dsn, table):
    ran = []

    @app.task
    async def follower(a: int) -> None:
        ran.append((a, rows(dsn, table)))

    @app.task
    async def leader(ctx: Context) -> None:
        tx = await ctx.transaction()
        await follower.using(connection=tx).enqueue(1)
        await asyncio.sleep(0.2)
        assert ran == []
        await tx.execute(f"insert into {table} values (1, 'x')")

    async def followed():
        return ran

    async with app, app.worker():
        await (await leader.enqueue()).result(timeout=10)
        await eventually(followed, 5)
    assert ran == [(1, [(1, "x")])]


@pytest.mark.parametrize("how", ["cancelled", "taken over", "deleted"])
async def test_a_zombies_transaction_is_undone(app, dsn, table, how):
    """The hold is lost while the handler works: what it wrote is undone, whatever it returns."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    @app.task(max_attempts=5)
    async def work(ctx: Context) -> str:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values ({ctx.job.attempt}, 'x')")
        await work.using(connection=tx, queue="later").enqueue()
        inside.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                pass  # it does not listen
        return "done"

    async with app, app.worker(queues=["default"]):
        job = await work.enqueue()
        await inside.wait()
        schema = schema_of(app)
        if how == "cancelled":
            await job.cancel()
        elif how == "deleted":
            await job.cancel()
            with psycopg.connect(dsn, autocommit=True) as connection:
                for name in ("jobs", "holds", "outcomes", "waiting"):
                    connection.execute(f'delete from "{schema}".{name} where id = %s'.encode(), (job.id,))
        else:
            with psycopg.connect(dsn, autocommit=True) as connection:  # reaped and claimed by another
                connection.execute(f'update "{schema}".holds set attempt = 2, stamp = stamp + 1'.encode())
        go_on.set()

        await stays(lambda: rows(dsn, table) == [], 0.3)
    assert rows(dsn, table) == []
    assert await app.jobs.count(queue="later") == 0
    if how == "cancelled":
        assert (await job.refresh()).state is State.CANCELLED
    await app.close()


async def test_nothing_waits_for_a_handlers_transaction(app, dsn, table):
    """While it is open, everybody may lock every row of ours, the job is renewed, and other jobs run."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def quick() -> int:
        return 1

    @app.task
    async def slow(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (1, 'x')")
        await quick.using(connection=tx).enqueue()
        inside.set()
        await go_on.wait()

    async with app, app.worker():
        job = await slow.enqueue()
        await inside.wait()
        schema = schema_of(app)
        with psycopg.connect(dsn) as other:
            for name in ("jobs", "waiting", "holds", "outcomes", "held_keys", "kept_keys", "queues", "workers"):
                other.execute(f'select * from "{schema}".{name} for update nowait'.encode())
        assert await (await quick.enqueue()).result(timeout=30) == 1
        go_on.set()
        await job.result(timeout=30)


async def test_a_transaction_that_takes_too_long_is_undone_and_says_so(kind, dsn, table):
    app = Perdure(server(kind).fresh(), max_attempts=1)

    @app.task(lease=3)
    async def slow(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (1, 'x')")
        await tx.execute("select pg_sleep(30)")

    @app.task(lease=3)
    async def idle(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (1, 'x')")
        await asyncio.sleep(1.5)

    async with app, app.worker():
        for task in (slow, idle):
            seen = await ended(await task.enqueue())
            assert seen.state is State.DEAD
            assert "took longer than 0.5 s" in seen.errors[-1].message
    assert rows(dsn, table) == []


async def test_a_transaction_that_the_handler_ends_itself(app, dsn, table):
    @app.task
    async def commits(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (1, 'x')")
        await tx.connection.execute("commit")

    @app.task
    async def rolls_back(ctx: Context) -> None:
        tx = await ctx.transaction()
        await tx.connection.execute("rollback")

    async with app, app.worker():
        for task in (commits, rolls_back):
            seen = await ended(await task.enqueue())
            assert seen.state is State.DEAD
            assert "ended by the handler" in seen.errors[-1].message, seen.errors


@pytest.mark.parametrize(
    "lasting",
    [
        "set search_path to nowhere",
        "select set_config('search_path', 'nowhere', false)",
        "create temp table leftover (a integer)",
        "select pg_advisory_lock(77)",
        "listen leftover",
        "in its own hands",
    ],
)
async def test_what_a_handler_does_to_its_session_is_not_there_for_the_next(app, dsn, table, lasting):
    @app.task
    async def work(ctx: Context, statement: str) -> int:
        tx = await ctx.transaction()
        [(backend, path)] = await tx.execute("select pg_backend_pid(), current_setting('search_path')")
        assert path == '"$user", public'
        if statement == "in its own hands":
            await tx.connection.execute("select set_config('search_path', 'nowhere', false)")
        else:
            await tx.execute(statement)
        return backend

    async with app, app.worker(concurrency=1):
        backends = []
        for statement in (f"update {table} set b = 'x'", "set local search_path to nowhere", lasting, "select 1"):
            backends.append(await (await work.enqueue(statement)).result(timeout=10))
    first, second, third, fourth = backends
    assert first == second == third != fourth


async def test_many_at_once(app, dsn, table):
    """More handlers with a transaction than there are connections for them: the others wait for their turn."""

    @app.task
    async def work(ctx: Context, n: int) -> int:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (%s, 'x')", (n,))
        await asyncio.sleep(0.05)
        return n

    async with app, app.worker(concurrency=100):
        jobs = await app.enqueue([work.call(n) for n in range(100)])
        assert [await job.result(timeout=30) for job in jobs] == list(range(100))
    assert len(rows(dsn, table)) == 100


WORKER = """
import asyncio, sys, time
from perdure import Context, Perdure

url, table = sys.argv[1:]
app = Perdure(url)

@app.task(name="work", lease=12)
async def work(ctx: Context) -> int:
    tx = await ctx.transaction()
    await tx.execute(f"insert into {table} values (%s, 'x')", (ctx.job.attempt,))
    await work.using(connection=tx, queue="later").enqueue()
    if ctx.job.attempt == 1:
        print("inside", flush=True)
        await asyncio.sleep(60)
    return ctx.job.attempt

async def main():
    async with app.worker(queues=["default"]):
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_worker_that_is_killed_inside_leaves_nothing(app, dsn, table):
    @app.task(lease=12, max_attempts=3)
    async def work(ctx: Context) -> int:
        tx = await ctx.transaction()
        await tx.execute(f"insert into {table} values (%s, 'x')", (ctx.job.attempt,))
        await work.using(connection=tx, queue="later").enqueue()
        return ctx.job.attempt

    async with app:
        job = await work.enqueue()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, app._runtime.loops.url, table, stdout=asyncio.subprocess.PIPE
        )
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"inside\n"
        process.kill()
        await process.wait()
        assert await app.jobs.count(queue="later") == 0
        with psycopg.connect(dsn, autocommit=True) as connection:  # its lease is over, long before its time
            connection.execute(f'update "{schema_of(app)}".holds set leased_until = 0'.encode())
        async with app.worker(queues=["default"]):
            assert await job.result(timeout=30) == 2
    assert rows(dsn, table) == [(2, "x")]
    assert await app.jobs.count(queue="later") == 1
    await app.close()
