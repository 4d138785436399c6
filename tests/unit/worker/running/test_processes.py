"""Handlers in processes of their own: the same words, the same context, and a kill that hurts nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from perdure import InvalidCall, JobDead, JobSkipped, Loss, Perdure, State
from perdure.errors import StoreUnavailable
from perdure.tasks.options import JobTemplate
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.faults import Fault
from tests.support.plant import SOURCE, alive
from tests.support.waiting import wait_until

PROGRAM = '''
import asyncio, ctypes, os, signal, sys, time, warnings
from contextlib import contextmanager
from perdure import Backoff, Context, Dead, Perdure, Retry, Skip, Snooze

app = Perdure(URL, backoff=Backoff.fixed(0.01), run_in="process", lease=2)


class Pool:
    pass


@contextmanager
def make_pool():
    yield Pool()


app.provide(Pool, make_pool)


@app.middleware
async def twice(ctx, call_next):
    value = await call_next()
    return value * 2 if ctx.job.tags == ("doubled",) else value


@app.task
def where(ctx: Context, n: int) -> list:
    assert Context.current() is ctx
    return [os.getpid(), n, ctx.worker, ctx.tenant, ctx.fence, ctx.job.attempt]


@app.task
async def number(n: int) -> int:
    await asyncio.sleep(0)
    return n


@app.task
def with_pool(pool: Pool) -> str:
    return type(pool).__name__


@app.task
def says(ctx: Context) -> str:
    ctx.sync.progress({"percent": 40})
    ctx.sync.log("from afar")
    return str(ctx.job.progress)


@app.task
def uses_blocking_tools(ctx: Context) -> int:
    async def double(n):
        await asyncio.sleep(0)
        return 2 * n

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctx.sync.progress("begun")
        return asyncio.run(double(21))


class Wordless(KeyError):
    def __str__(self):
        return self.missing  # AttributeError


class Careless(Dead):
    def __init__(self): ...


@app.task(retry_on=(KeyError, SystemExit, KeyboardInterrupt, GeneratorExit))
def ends(ctx: Context, how: str) -> str:
    if ctx.job.attempt == 1:
        if how == "retry": raise Retry(0)
        if how == "snooze": raise Snooze(0)
        if how == "skip": raise Skip("nothing to do")
        if how == "dead": raise Dead("no use")
        if how == "worth it": raise KeyError("again")
        if how == "not worth it": raise ValueError("never")
        if how == "unfit": return object()
        if how == "wordless": raise Wordless
        if how == "careless": raise Careless
        if how == "exit": sys.exit(3)
        if how == "interrupt": raise KeyboardInterrupt
        if how == "generator": raise GeneratorExit
    return "done"


@app.task
async def transacts(ctx: Context) -> None:
    await ctx.transaction()


@app.task
def dies(ctx: Context, how: str, times: int) -> str:
    if ctx.job.attempt <= times:
        print("last words", file=sys.stderr, flush=True)
        if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if how == "segfault": ctypes.string_at(0)
        if how == "exit": os._exit(5)
    return "done"


@app.task(timeout=0.6)
def grinds(ctx: Context, path: str) -> str:
    """Holds the interpreter's lock for ever, at the first attempt."""
    if ctx.job.attempt == 1:
        open(path, "w").write(str(os.getpid()))
        ctypes.PyDLL(None).sleep(60)
    return "done"


@app.task
def until_lost(ctx: Context, path: str, listens: bool) -> None:
    open(path, "w").write(str(os.getpid()))
    while True:
        time.sleep(0.01)
        if listens and ctx.lost.is_set():
            open(path + ".reason", "w").write(str(ctx.lost.reason))
            ctx.lost.check()


@app.task
async def until_cancelled(ctx: Context, path: str) -> None:
    open(path, "w").write(str(os.getpid()))
    try:
        await asyncio.sleep(3600)
    finally:
        open(path + ".reason", "w").write(str(ctx.lost.reason))
'''


@pytest.fixture(params=["sqlite", *OF_EACH_KIND])
def program(request, tmp_path, monkeypatch):
    yield from imported(address(request.param, tmp_path), tmp_path, monkeypatch)


@pytest.fixture
def on_sqlite(tmp_path, monkeypatch):
    yield from imported(address("sqlite", tmp_path), tmp_path, monkeypatch)


def imported(url, folder, monkeypatch):
    (folder / "far_away.py").write_text(PROGRAM.replace("URL", repr(url)))
    monkeypatch.syspath_prepend(str(folder))
    yield import_module("far_away")
    del sys.modules["far_away"]


async def test_the_trouble_of_the_store_is_not_charged(program, monkeypatch):
    app = program.app
    async with app:
        store = await app._runtime.storage()
        async with app.worker(concurrency=2, poll=0.1):
            fault = Fault(store, "note", monkeypatch, StoreUnavailable("it cannot be reached").at(store.place))
            spoke = await program.says.enqueue()
            assert await spoke.result(timeout=30) == "{'percent': 40}"
            assert not fault.left
            job = await spoke.refresh()
            assert (job.attempt, job.failures, job.losses) == (2, 0, 0)


async def test_the_same_words_and_the_same_context(program):
    app = program.app
    async with app, app.worker(concurrency=4, poll=0.1, name="anna"):
        first = await program.where.using(tenant="acme").enqueue(1)
        pid, *seen = await first.result(timeout=30)
        assert pid != os.getpid()
        assert seen == [1, "anna", "acme", f"{first.id}:1", 1]
        again, *_ = await (await program.where.enqueue(2)).result(timeout=20)
        assert again == pid  # kept warm
        assert await (await program.number.using(tags=["doubled"]).enqueue(21)).result(timeout=20) == 42
        assert await (await program.with_pool.enqueue()).result(timeout=20) == "Pool"
        spoke = await program.says.enqueue()
        assert await spoke.result(timeout=20) == "{'percent': 40}"
        assert (await spoke.refresh()).progress == {"percent": 40}
        assert await app.jobs.log(spoke.id) == ("from afar",)
        dying = await program.dies.enqueue("kill", 1)
        assert await dying.result(timeout=20) == "done"
        lost = await dying.refresh()
        assert (lost.attempt, lost.failures) == (2, 0)
        assert "(pid " in lost.errors[0].message
        assert "was killed by SIGKILL" in lost.errors[0].message


async def test_no_loop_runs_around_a_blocking_handler(on_sqlite):
    """No verb with .sync warns that it blocks a loop, and asyncio.run works, as in a thread."""
    app = on_sqlite.app
    async with app, app.worker(poll=0.1, concurrency=1):
        for tags, wanted in (((), 42), (("doubled",), 84), ((), 42)):
            job = await on_sqlite.uses_blocking_tools.using(tags=tags, max_attempts=1).enqueue()
            assert await job.result(timeout=30) == wanted
            assert (await job.refresh()).progress == "begun"


async def test_arguments_that_do_not_fit_are_dead_at_once(on_sqlite):
    app = on_sqlite.app
    async with app, app.worker(poll=0.1):
        job = JobTemplate("number", {"max_attempts": 5}).job('{"n":"seven"}', str)
        await (await app._runtime.storage()).enqueue([job])
        with pytest.raises(JobDead, match="its arguments do not fit the task; last: InvalidCall: number: argument 'n'"):
            await on_sqlite.number.handle(job.id).result(timeout=30)
        assert (await app.jobs.get(job.id)).attempt == 1


async def test_outcomes_come_back_as_they_were_said(on_sqlite):
    program, app = on_sqlite, on_sqlite.app
    async with app, app.worker(poll=0.1):
        handles = {how: await program.ends.enqueue(how) for how in ("retry", "snooze", "worth it")}
        for handle in handles.values():
            assert await handle.result(timeout=30) == "done"
        jobs = {how: await handle.refresh() for how, handle in handles.items()}
        assert {how: (job.attempt, job.failures) for how, job in jobs.items()} == {
            "retry": (2, 1), "snooze": (2, 0), "worth it": (2, 1),
        }  # fmt: skip
        error = jobs["worth it"].errors[0]
        assert (error.kind, error.message) == ("KeyError", "'again'")
        assert 'raise KeyError("again")' in error.traceback
        with pytest.raises(JobSkipped, match="nothing to do"):
            await (await program.ends.enqueue("skip")).result(timeout=20)
        with pytest.raises(JobDead, match="no use"):
            await (await program.ends.enqueue("dead")).result(timeout=20)
        with pytest.raises(JobDead, match="ValueError is not retried"):
            await (await program.ends.enqueue("not worth it")).result(timeout=20)
        unfit = await program.ends.enqueue("unfit")
        assert await unfit.result(timeout=20) == "done"
        assert (await unfit.refresh()).errors[0].kind == "InvalidCall"
        with pytest.raises(JobDead, match=r"ctx\.transaction\(\) does not reach"):
            await (await program.transacts.using(max_attempts=1).enqueue()).result(timeout=20)


async def test_ends_that_break_are_failures_and_the_child_goes_on(on_sqlite):
    program, app = on_sqlite, on_sqlite.app
    kinds = {
        "wordless": "Wordless", "careless": "AttributeError",
        "exit": "SystemExit", "interrupt": "KeyboardInterrupt", "generator": "GeneratorExit",
    }  # fmt: skip
    async with app, app.worker(poll=0.1, concurrency=1):
        pid, *_ = await (await program.where.enqueue(1)).result(timeout=30)
        for how, kind in kinds.items():
            job = await program.ends.enqueue(how)
            assert await job.result(timeout=20) == "done"
            seen = await job.refresh()
            assert (seen.attempt, seen.failures, seen.losses, seen.errors[0].kind) == (2, 1, 0, kind)
        again, *_ = await (await program.where.enqueue(1)).result(timeout=20)
        assert again == pid


async def test_a_process_is_killed_on_time_and_its_neighbour_goes_on(on_sqlite, tmp_path, machine):
    program, app = on_sqlite, on_sqlite.app
    async with app, app.worker(poll=0.1):
        await (await program.number.enqueue(1)).result(timeout=20)  # a warm child
        neighbour = await program.until_cancelled.enqueue(str(tmp_path / "neighbour"))
        stuck = await program.grinds.enqueue(str(tmp_path / "stuck"))
        pid = int(await asyncio.to_thread(wait_until, lambda: _text(tmp_path / "stuck")))
        assert await stuck.result(timeout=20) == "done"
        job = await stuck.refresh()
        assert (job.attempt, job.failures, job.losses) == (2, 1, 0)
        assert job.errors[0].kind == "TimeoutError"
        assert 0.6 <= (job.errors[0].ended_at - job.errors[0].started_at).total_seconds() < machine.seconds(2.6)
        assert not alive(pid)
        assert (await neighbour.refresh()).attempt == 1
        assert await neighbour.cancel()
        await asyncio.to_thread(wait_until, lambda: _text(tmp_path / "neighbour.reason"))


async def test_poison_is_charged_to_the_one_job_in_the_process(on_sqlite):
    program, app = on_sqlite, on_sqlite.app
    async with app, app.worker(poll=0.1):
        poison = await program.dies.enqueue("segfault", 9)
        with pytest.raises(JobDead, match="poison: 3 workers died"):
            await poison.result(timeout=30)
        job = await poison.refresh()
    assert (job.attempt, job.losses, job.failures) == (3, 3, 0)
    assert all("SIGSEGV" in error.message and "last words" in error.traceback for error in job.errors)


async def test_a_lost_hold_stops_the_process(on_sqlite, tmp_path):
    program, app = on_sqlite, on_sqlite.app
    async with app:
        async with app.worker(poll=0.1, concurrency=3, grace=0):
            listens = await program.until_lost.enqueue(str(tmp_path / "listens"), True)
            deaf = await program.until_lost.enqueue(str(tmp_path / "deaf"), False)
            at_stop = await program.until_cancelled.enqueue(str(tmp_path / "at_stop"))
            pids = [
                int(await asyncio.to_thread(wait_until, lambda name=name: _text(tmp_path / name)))
                for name in ("listens", "deaf", "at_stop")
            ]
            assert await listens.cancel()
            assert await deaf.cancel()
            await asyncio.to_thread(wait_until, lambda: _text(tmp_path / "listens.reason"))
            await asyncio.to_thread(wait_until, lambda: not alive(pids[1]))
        assert _text(tmp_path / "listens.reason") == Loss.CANCELLED
        assert _text(tmp_path / "at_stop.reason") == Loss.SHUTDOWN
        assert not any(alive(pid) for pid in pids)
        back = await at_stop.refresh()
        assert (back.state, back.failures, back.losses) == (State.READY, 0, 0)


async def test_an_app_that_no_child_can_import_is_refused():
    app = Perdure("memory://")

    @app.task(run_in="process")
    def far() -> None: ...

    with pytest.raises(InvalidCall, match="at the top level of a module"):
        await app.worker().start()


SCRIPT = """
import asyncio, os
from perdure import Perdure

app = Perdure("memory://")


@app.task(run_in="process")
def where() -> int:
    return os.getpid()


async def main():
    async with app, app.worker():
        print(await (await where.using(max_attempts=1).enqueue()).result(timeout=30) != os.getpid())
"""


@pytest.mark.parametrize("guarded", [True, False])
def test_an_app_in_a_script(tmp_path, guarded):
    ending = 'if __name__ == "__main__":\n    asyncio.run(main())\n' if guarded else "asyncio.run(main())\n"
    (tmp_path / "script.py").write_text(SCRIPT + ending)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if guarded:
        assert done.stdout == "True\n", done.stderr
    else:
        assert '`if __name__ == "__main__":`' in done.stderr
        assert "did not start" in done.stderr


def test_children_do_not_outlive_their_worker(tmp_path, on_sqlite):
    """kill -9 of a worker without a supervisor: the child hears it, or the kernel tells it."""
    path = tmp_path / "child"
    asyncio.run(_enqueue(on_sqlite, str(path)))
    worker = subprocess.Popen(
        [sys.executable, "-m", "perdure", "worker", "far_away:app", "--no-supervisor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.DEVNULL,
    )
    try:
        pid = int(wait_until(lambda: _text(path)))
        worker.kill()
        worker.wait()
        wait_until(lambda: not alive(pid))
    finally:
        worker.kill()
        worker.wait()


async def _enqueue(program, path: str) -> None:
    async with program.app:
        await program.until_lost.enqueue(path, False)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
