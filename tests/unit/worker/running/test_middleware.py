"""Middleware: the onion around every attempt. None of it concerns a store."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar

import pytest

from perdure import Backoff, Context, InvalidCall, JobDead, JobSkipped, Loss, Perdure, Registry, Skip, State

SOON = Backoff.fixed(0.01)
who: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def app():
    return Perdure("memory://")


@pytest.mark.parametrize("kind", ["async", "def", "def in the loop"])
async def test_the_first_is_the_outermost_and_surrounds_every_attempt(app, kind):
    said = []

    @app.middleware
    async def outer(ctx: Context, call_next):
        said.append(f"outer {ctx.job.attempt}")
        assert ctx.jobs == (ctx.job,)
        try:
            return f"<{await call_next()}>"
        finally:
            said.append("outer over")

    @app.middleware
    async def inner(ctx, call_next):
        said.append(f"inner {ctx.job.task}")
        return await call_next()

    def handle(n: int) -> str:
        said.append("handler")
        if Context.current().job.attempt == 1:
            raise ValueError("not yet")
        return str(n)

    async def handle_async(n: int) -> str:
        return handle(n)

    run_in = "loop" if kind == "def in the loop" else "auto"
    task = app.task(name="t", backoff=SOON, run_in=run_in)(handle_async if kind == "async" else handle)
    async with app, app.worker():
        assert await (await task.enqueue(5)).result(timeout=10) == "<5>"
    assert said == [f"outer {n}" if line == "outer" else line for n in (1, 2) for line in
                    ("outer", "inner t", "handler", "outer over")]  # fmt: skip


async def test_it_may_answer_itself_and_sees_failures(app):
    seen = []

    @app.middleware
    async def judge(ctx, call_next):
        if ctx.job.payload == '{"how":"cached"}':
            return "from the cache"
        try:
            return await call_next()
        except ZeroDivisionError as error:
            seen.append(type(error))
            raise Skip("nothing to divide") from error

    @app.task(max_attempts=1)
    async def divide(how: str) -> float:
        return 1 / 0 if how == "zero" else float(how)

    async with app, app.worker():
        cached, zero, unfit = await app.enqueue([divide.call("cached"), divide.call("zero"), divide.call("x")])
        with pytest.raises(JobSkipped):
            await zero.result(timeout=10)
        with pytest.raises(JobDead) as dead:
            await unfit.result(timeout=10)
        (error,) = dead.value.job.errors
        assert (error.kind, "in divide" in error.traceback) == ("ValueError", True)
        assert "src/perdure" not in error.traceback.partition("in judge")[0]
        assert (await cached.refresh()).result == "from the cache"
    assert seen == [ZeroDivisionError]


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_context_variables_reach_the_handler_and_no_other_job(app, kind):
    @app.middleware
    async def named(ctx, call_next):
        assert who.get() == "nobody"
        who.set(ctx.job.payload)
        return await call_next()

    async def ask_async(n: int) -> str:
        await asyncio.sleep(0)
        return who.get()

    def ask(n: int) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return who.get()

    task = app.task(name="ask")(ask_async if kind == "async" else ask)
    async with app, app.worker(concurrency=2):
        for n, handle in enumerate(await app.enqueue([task.call(n) for n in range(10)])):
            assert await handle.result(timeout=10) == f'{{"n":{n}}}'
    assert who.get() == "nobody"


async def test_a_registrys_middleware_is_for_its_own_tasks_and_an_apps_for_all(app):
    said = []
    billing = Registry(prefix="billing.")

    @billing.middleware
    async def inner(ctx, call_next):
        said.append(f"billing around {ctx.job.task}")
        return await call_next()

    @app.middleware
    async def outer(ctx, call_next):
        said.append(f"app around {ctx.job.task}")
        return await call_next()

    @billing.task
    async def charge() -> None: ...

    @app.task
    async def greet() -> None: ...

    app.include(billing)
    async with app, app.worker(concurrency=1):
        await (await charge.enqueue()).result(timeout=10)
        await (await greet.enqueue()).result(timeout=10)
    assert said == ["app around billing.charge", "billing around billing.charge", "app around greet"]


async def test_run_goes_through_it_too(app):
    @app.middleware
    async def loud(ctx, call_next):
        return f"{await call_next()}!"

    @app.task
    def greet(name: str) -> str:
        return f"hello {name}"

    assert await greet.run("Ada") == "hello Ada!"


async def test_a_thread_below_middleware_is_given_up_when_its_time_is_over(app):
    release, back, over = threading.Event(), threading.Event(), []

    @app.middleware
    async def timed(ctx, call_next):
        try:
            return await call_next()
        finally:
            over.append(ctx.lost.reason)

    @app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        release.wait(30)
        back.set()

    @app.task
    def quick() -> str:
        return "quick"

    async with app, app.worker(concurrency=1, grace=0):
        job = await stuck.enqueue()
        with pytest.raises(JobDead, match="failed 1 of 1"):
            await job.result(timeout=10)
        assert await (await quick.enqueue()).result(timeout=10) == "quick"  # another thread took its place
        release.set()
        assert await asyncio.to_thread(back.wait, 10)
        assert await (await quick.enqueue()).result(timeout=10) == "quick"
    assert over == [Loss.TIMEOUT, None, None]


async def test_a_thread_below_middleware_is_told_of_a_cancellation_and_awaited(app):
    begun, over = threading.Event(), []

    @app.middleware
    async def watch(ctx, call_next):
        try:
            return await call_next()
        finally:
            over.append("middleware")

    @app.task
    def grind(ctx: Context) -> None:
        begun.set()
        while not ctx.lost.is_set():
            time.sleep(0.01)
        over.append(f"handler {ctx.lost.reason}")

    async with app, app.worker():
        job = await grind.enqueue()
        assert await asyncio.to_thread(begun.wait, 10)
        assert await job.cancel()
    assert over == ["handler cancelled", "middleware"]
    assert (await job.refresh()).state is State.CANCELLED


def test_what_is_no_middleware_is_refused(app):
    with pytest.raises(InvalidCall, match="call_next"):
        app.middleware(lambda ctx: None)
    with pytest.raises(InvalidCall, match="call_next"):
        app.middleware("trace")


async def test_a_middleware_that_is_not_async_is_told_so(app):
    @app.middleware
    def blocking(ctx, call_next):
        return 5

    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidCall, match="must be async"):
        await work.run()


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError])
async def test_what_no_future_can_carry_is_a_failure_like_any_other(app, kind):
    @app.middleware
    async def around(ctx, call_next):
        return await call_next()

    @app.task(max_attempts=1)
    def odd() -> None:
        raise kind

    async with app, app.worker(concurrency=1):
        with pytest.raises(JobDead) as dead:
            await (await odd.enqueue()).result(timeout=10)
    assert kind.__name__ in dead.value.job.errors[0].message
