"""The time of an attempt ends while its handler waits for a store that does not answer: the job is not charged for it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time

import pytest

from perdure import Backoff, Context, Perdure, State
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.proxy import Proxy

ONCE = {"max_attempts": 1, "backoff": Backoff.fixed(0.01), "timeout": 1}  # a single failure would make a dead letter
SILENT_FOR = 3.0  # seconds
VERBS = {
    "progress": lambda ctx, task: ctx.progress(1),
    "log": lambda ctx, task: ctx.log("a line"),
    "step": lambda ctx, task: ctx.step("one", int),
    "sleep": lambda ctx, task: ctx.sleep(0.01),
    "enqueue": lambda ctx, task: task.enqueue(),
    "transaction": lambda ctx, task: ctx.transaction(),
    "statement": lambda ctx, task: _one_statement(ctx),
}


async def _one_statement(ctx: Context) -> None:
    tx = await ctx.transaction()
    await ctx.app.state.silence()
    if ctx.app.state.kind == "mongo":
        await tx.connection.client["test"]["things"].find_one({}, session=tx.connection)
    else:
        await tx.execute("SELECT 1")


class Store:
    """A store of which nobody gets an answer for a while."""

    def __init__(self, kind: str, folder) -> None:
        self.kind = kind
        self.direct = address(kind, folder)
        self._proxy = None if kind == "sqlite" else Proxy(self.direct)
        self.url = self.direct if self._proxy is None else self._proxy.url
        self._file = folder / "jobs.db"
        self.silenced = threading.Event()

    async def silence(self) -> None:
        """Only the first time."""
        if self.silenced.is_set():
            return
        began = threading.Event()
        threading.Thread(target=self._silence, args=(began,), daemon=True).start()
        await asyncio.to_thread(began.wait)
        self.silenced.set()

    def _silence(self, began: threading.Event) -> None:
        if self._proxy is not None:
            self._proxy.swallow(True)
            began.set()
            time.sleep(SILENT_FOR)
            self._proxy.swallow(False)
            self._proxy.cut()
            return
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None, timeout=20)) as other:
            other.execute("BEGIN IMMEDIATE")
            began.set()
            time.sleep(SILENT_FOR)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._proxy is not None:
            self._proxy.__exit__()


@pytest.fixture(params=["sqlite", *OF_EACH_KIND])
def silent(request, tmp_path):
    with Store(request.param, tmp_path) as store:
        yield store


async def ended(onlooker: Perdure, handle):
    """The job, read by an app that the silence does not concern."""
    async with asyncio.timeout(60):
        while (job := await onlooker.jobs.get(handle.id)).state not in (State.SUCCEEDED, State.DEAD):
            await asyncio.sleep(0.05)
    return job


async def not_charged(onlooker: Perdure, handle) -> None:
    job = await ended(onlooker, handle)
    assert (job.state, job.failures, job.losses) == (State.SUCCEEDED, 0, 0), job.errors
    assert job.errors == ()
    assert job.attempt >= 2


@pytest.mark.parametrize("verb", VERBS)
async def test_a_timeout_during_a_verb_is_not_charged(silent, verb):
    if silent.kind == "valkey" and verb in ("transaction", "statement"):
        pytest.skip("it has no transactions")
    if silent.kind == "sqlite" and verb == "statement":
        pytest.skip("its transaction holds the lock that all others wait for")
    app = Perdure(silent.url, lease=60)
    app.state = silent

    @app.task
    async def other() -> None: ...

    @app.task(**ONCE)
    async def work(ctx: Context) -> None:
        if verb != "statement":
            await silent.silence()
        await VERBS[verb](ctx, other)

    async with Perdure(silent.direct) as onlooker, app, app.worker(poll=0.1):
        await not_charged(onlooker, await work.enqueue())
    assert silent.silenced.is_set()


async def test_a_timeout_in_a_thread_is_not_charged(silent):
    app = Perdure(silent.url, lease=60)

    @app.task(**ONCE)
    def work(ctx: Context) -> None:
        asyncio.run(silent.silence())
        ctx.sync.progress(1)

    async with Perdure(silent.direct) as onlooker, app, app.worker(poll=0.1):
        await not_charged(onlooker, await work.enqueue())


@pytest.mark.parametrize("how", ["slow code", "slow code in a transaction", "a slow statement"])
async def test_a_handler_that_is_slow_by_itself_is_charged(silent, how):
    """The store answers all the while."""
    if (silent.kind == "valkey" and how != "slow code") or (silent.kind != "postgres" and how == "a slow statement"):
        pytest.skip("it has no such thing")
    app = Perdure(silent.direct, lease=60)

    @app.task(max_attempts=1, timeout=0.5)
    async def work(ctx: Context) -> None:
        await ctx.progress(1)
        if how == "slow code":
            await asyncio.sleep(30)
        tx = await ctx.transaction()
        if how == "a slow statement":
            await tx.execute("SELECT pg_sleep(30)")
        await asyncio.sleep(30)

    async with app, app.worker(poll=0.1):
        job = await ended(app, await work.enqueue())
    assert (job.state, job.failures) == (State.DEAD, 1)
    assert "longer than its timeout" in job.errors[-1].message
