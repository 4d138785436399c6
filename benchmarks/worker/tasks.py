"""The app and tasks of the cases, in a module of their own: child processes import it."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from perdure import Context, Limit, Perdure

URL = "BENCH_WORKER_URL"
app = Perdure(os.environ.get(URL, "memory://"), durability="relaxed", imports=["benchmarks.worker.tasks"])
picked_up: list[float] = []  # seconds from the enqueue to the handler, of this process
begun = {"large": 0, "small": 0}  # handlers of each tenant, of this process


@app.task
async def wait_10_ms() -> None:
    await asyncio.sleep(0.01)


def compute(seconds: float) -> float:
    """Keeps a core busy for so much of its own time."""
    until = time.thread_time() + seconds
    turns = 0
    while time.thread_time() < until:
        turns += sum(range(200))
    return turns


in_process = app.task(name="in_process", run_in="process")(compute)
in_thread = app.task(name="in_thread", run_in="thread")(compute)


@app.task
async def arrive(sent: float) -> None:
    picked_up.append(time.time() - sent)


def holding(lease: float) -> Any:
    """A task whose handler does nothing for ever, under such a lease."""

    async def hold_on() -> None:
        await asyncio.Event().wait()

    return app.task(name="hold_on", lease=lease)(hold_on)


@app.task
async def nothing() -> None: ...


@app.task(limit=Limit(max_running=25))
async def nothing_limited() -> None: ...


@app.task(limit=Limit(max_running=1_000_000))
async def nothing_under_a_limit() -> None:
    """Under a limit that is never reached: what it costs to be counted."""


@app.task(queue="stuck", limit=Limit(max_running=1))
async def stuck() -> None:
    """Keeps all others of its kind waiting."""
    await asyncio.Event().wait()


@app.task(queue="fair")
async def of_a_tenant(ctx: Context) -> None:
    begun[ctx.tenant or ""] += 1
    await asyncio.sleep(0.01)


# the same tasks with two middlewares around each of them
wrapped = Perdure(os.environ.get(URL, "memory://"), durability="relaxed", imports=["benchmarks.worker.tasks"])
wrapped.include(app)


@wrapped.middleware
async def outer(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()


@wrapped.middleware
async def inner(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()
