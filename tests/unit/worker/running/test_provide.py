"""What handlers are given: opened at start, closed at stop, by annotation and by ctx.get."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest

from perdure import PROVIDED, Backoff, Context, InvalidCall, JobDead, NotFound, Perdure, Registry


class Pool:
    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Session:
    number = 0


class Client:
    """A context manager of its own."""

    entered = 0

    async def __aenter__(self) -> Client:
        self.entered += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self.entered -= 1


@pytest.fixture
def app():
    return Perdure("memory://")


async def make_pool() -> Pool:
    await asyncio.sleep(0)
    return Pool("awaited")


@pytest.mark.parametrize(("make", "name"), [(Pool, "pool"), (lambda: Pool("called"), "called"), (make_pool, "awaited")])
async def test_makers(app, make, name):
    app.provide(Pool, make)

    @app.task
    async def use(ctx: Context, pool: Pool, n: int) -> str:
        assert ctx.get(Pool) is pool
        return f"{pool.name} {n}"

    @app.task
    def use_in_thread(n: int, *, pool: Pool) -> str:
        assert Context.current().get(Pool) is pool
        return f"{pool.name} {n}"

    assert await use.run(1) == f"{name} 1"
    async with app, app.worker():
        assert await (await use.enqueue(1)).result(timeout=10) == f"{name} 1"
        job = await use_in_thread.enqueue(2)
        assert await job.result(timeout=10) == f"{name} 2"
        assert (await job.refresh()).payload == '{"n":2}'


async def test_opened_at_start_and_closed_at_stop_in_reverse(app):
    said = []

    @asynccontextmanager
    async def pool():
        said.append("pool opened")
        yield Pool()
        said.append("pool closed")

    @contextmanager
    def session():
        said.append("session opened")
        yield Session()
        said.append("session closed")

    app.provide(Pool, pool)
    app.provide(Session, session)
    client = Client()
    app.provide(Client, lambda: client)

    @app.task
    async def use(pool: Pool, session: Session, client: Client) -> int:
        said.append("used")
        return client.entered

    async with app, app.worker():
        assert said == ["pool opened", "session opened"]
        assert await (await use.enqueue()).result(timeout=10) == 1
        assert await (await use.enqueue()).result(timeout=10) == 1
    assert said == ["pool opened", "session opened", "used", "used", "session closed", "pool closed"]
    assert client.entered == 0


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_scope_job_is_opened_for_each_attempt_and_told_how_it_ended(app, kind):
    said = []

    @asynccontextmanager
    async def session():
        said.append("begin")
        try:
            yield Session()
        except ValueError:
            said.append("rollback")
            raise
        said.append("commit")

    app.provide(Session, session, scope="job")

    @app.middleware
    async def sees(ctx, call_next):
        ctx.get(Session).number = ctx.job.attempt
        return await call_next()

    def use(session: Session, n: int) -> int:
        if session.number == 1:
            raise ValueError("again")
        return session.number

    async def use_async(session: Session, n: int) -> int:
        return use(session, n)

    task = app.task(name="use", backoff=Backoff.fixed(0.01))(use_async if kind == "async" else use)
    async with app, app.worker():
        assert await (await task.enqueue(1)).result(timeout=10) == 2
    assert said == ["begin", "rollback", "begin", "commit"]


async def test_a_kind_that_is_provided_after_the_task_was_declared(app):
    class Local: ...

    @app.task
    async def use(n: int, local: Local = PROVIDED, factor: int = 2) -> int:
        assert isinstance(local, Local)
        return n * factor

    with pytest.raises(InvalidCall, match=r"use.*Local.*'local'; provided: nothing"):
        await app.worker().start()
    with pytest.raises(NotFound, match=r"Local.*provided: nothing"):
        await use.run(1)
    app.provide(Local, Local)
    async with app, app.worker():
        assert await (await use.enqueue(4, factor=3)).result(timeout=10) == 12
    with pytest.raises(InvalidCall, match="unexpected keyword argument 'local'"):
        use.call(1, local=Local())


async def test_a_kind_that_nobody_provides(app):
    app.provide(Pool, Pool)

    @app.task(max_attempts=1)
    async def use(ctx: Context) -> None:
        ctx.get(Session)

    async with app, app.worker():
        with pytest.raises(JobDead) as dead:
            await (await use.enqueue()).result(timeout=10)
    assert "nothing of kind Session is provided for task use; provided: Pool" in dead.value.job.errors[0].message


async def test_a_worker_that_cannot_open_something_does_not_start_and_closes_the_rest(app):
    client = Client()
    app.provide(Client, lambda: client)

    async def broken() -> Pool:
        raise ConnectionError("no database")

    app.provide(Pool, broken)

    @app.task
    async def use(pool: Pool) -> None: ...

    with pytest.raises(ConnectionError, match="no database") as raised:
        await app.worker().start()
    assert raised.value.__notes__ == ["while Pool was opened, which is provided for each worker"]
    assert client.entered == 0
    app.provide(Pool, Pool)  # again replaces
    async with app, app.worker():
        await (await use.enqueue()).result(timeout=10)
    assert client.entered == 0


async def test_a_registrys_things_are_for_its_own_tasks(app):
    billing = Registry(prefix="billing.")
    app.provide(Pool, lambda: Pool("app"))
    billing.provide(Pool, lambda: Pool("billing"))

    @app.task(name="ours")
    async def ours(pool: Pool) -> str:
        return pool.name

    @billing.task(name="theirs")
    async def theirs(pool: Pool) -> str:
        return pool.name

    assert theirs.call()._payload == "{}"  # before any app knows it
    app.include(billing)
    async with app, app.worker():
        assert await (await ours.enqueue()).result(timeout=10) == "app"
        assert await (await theirs.enqueue()).result(timeout=10) == "billing"


def test_what_cannot_be_provided(app):
    with pytest.raises(InvalidCall, match="come from the payload"):
        app.provide(str, lambda: "x")
    with pytest.raises(InvalidCall, match="to call, not Pool"):
        app.provide(Pool, Pool())
    with pytest.raises(InvalidCall, match='"worker" or "job"'):
        app.provide(Pool, Pool, scope="loop")
    with pytest.raises(InvalidCall, match="takes a class"):
        app.provide("Pool", Pool)
