"""What becomes of a job, by the way its handler ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel, field_serializer

from perdure import (
    Backoff,
    Context,
    Dead,
    JobDead,
    JobSkipped,
    NoContext,
    Perdure,
    Retention,
    Retry,
    Skip,
    Snooze,
    State,
)

SOON = Backoff.fixed(0.01)


async def test_a_value_makes_it_succeed(app):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with app, app.worker():
        job = await add.enqueue(1, b=2)
        assert await job.result(timeout=10) == 3
        seen = await job.refresh()
    assert seen.state is State.SUCCEEDED
    assert (seen.attempt, seen.failures, seen.result) == (1, 0, 3)
    assert seen.started_at is not None
    assert seen.finished_at >= seen.started_at
    assert seen.leased_by is None


async def test_what_is_no_result_is_told_with_what_was_meant(app):
    @app.task(max_attempts=1)
    async def skips() -> object:
        return Skip("nothing to do")

    forgotten = []

    @app.task(max_attempts=1)
    async def forgets() -> object:
        forgotten.append(asyncio.sleep(0))
        return forgotten[0]

    async with app, app.worker():
        with pytest.raises(JobDead, match=r"Skip\(…\) is an outcome, which is raised and not returned"):
            await (await skips.enqueue()).result(timeout=10)
        with pytest.raises(JobDead, match="it is a coroutine that was not awaited"):
            await (await forgets.enqueue()).result(timeout=10)
    forgotten[0].close()


async def test_def_handlers_run_in_threads(app):
    import threading

    @app.task
    def where(x: int) -> str:
        return f"{x} {threading.current_thread() is threading.main_thread()}"

    async with app, app.worker():
        job = await where.enqueue(7)
        assert await job.result(timeout=10) == "7 False"


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_failures_are_retried_until_the_budget_is_spent(app, kind):
    calls = []

    def fail(n: int) -> None:
        calls.append(n)
        raise ValueError(f"no {n}")

    async def fail_async(n: int) -> None:
        fail(n)

    task = app.task(name="fail", max_attempts=3, backoff=SOON)(fail_async if kind == "async" else fail)
    async with app, app.worker():
        job = await task.enqueue(1)
        with pytest.raises(JobDead) as dead:
            await job.result(timeout=10)
    seen = dead.value.job
    assert calls == [1, 1, 1]
    assert (seen.attempt, seen.failures, seen.losses) == (3, 3, 0)
    assert seen.reason == "failed 3 of 3 attempts"
    assert [error.attempt for error in seen.errors] == [1, 2, 3]
    assert seen.errors[0].kind == "ValueError"
    assert seen.errors[0].message == "no 1"
    assert "in fail" in seen.errors[0].traceback
    assert "worker/running/slots.py" not in seen.errors[0].traceback


async def test_retry_on_decides_what_is_worth_another_attempt(app):
    @app.task(retry_on=ConnectionError, backoff=SOON)
    async def pick(kind: str) -> None:
        raise ConnectionError(kind) if kind == "net" else KeyError(kind)

    async with app, app.worker():
        network, key = await app.enqueue([pick.call("net"), pick.call("key")])
        with pytest.raises(JobDead):
            await network.result(timeout=10)
        with pytest.raises(JobDead):
            await key.result(timeout=10)
        assert (await network.refresh()).failures == 3
        seen = await key.refresh()
        assert seen.failures == 1
        assert seen.reason == "KeyError is not retried"


async def test_a_judge_that_breaks_costs_the_job_nothing_but_the_attempt(app, caplog):
    @app.task(retry_on=lambda error: error.status == 503, backoff=SOON)
    async def fetch() -> None:
        raise ConnectionError("no status here")

    async with app, app.worker():
        job = await fetch.enqueue()
        with pytest.raises(JobDead):
            await job.result(timeout=10)
        seen = await job.refresh()
    assert (seen.failures, seen.errors[-1].message) == (3, "no status here")
    assert "retry_on of fetch broke: AttributeError: 'ConnectionError' object has no attribute 'status'" in caplog.text


@pytest.mark.parametrize("of", ["loop", "thread"])
async def test_reasons_of_any_kind_are_texts(app, of):
    """An error is often handed over as it is; and what is no text must not be the end of the worker's slot."""

    def raised(which: str) -> None:
        reasons = {"error": ValueError("no such address"), "number": 5, "characters": "a\ud800b"}
        raise {"Dead": Dead, "Skip": Skip}[which.split()[0]](reasons[which.split()[1]])

    async def in_loop(which: str) -> None:
        raised(which)

    task = app.task(name="task")(in_loop if of == "loop" else raised)

    async with app, app.worker():
        for reason, told in [("error", "no such address"), ("number", "5"), ("characters", "a\\ud800b")]:
            for outcome, ends in [("Dead", JobDead), ("Skip", JobSkipped)]:
                with pytest.raises(ends) as end:
                    await (await task.enqueue(f"{outcome} {reason}")).result(timeout=10)
                assert end.value.job.reason == told


async def test_a_result_whose_making_into_json_breaks_is_a_failure(app):
    class Odd(BaseModel):
        n: int

        @field_serializer("n")
        def broken(self, n: int) -> int:
            raise RuntimeError("not today")

    @app.task(max_attempts=1)
    async def odd() -> object:
        return Odd(n=1)

    async with app, app.worker():
        with pytest.raises(JobDead, match=r"the result of odd .*not today"):
            await (await odd.enqueue()).result(timeout=10)


async def test_outcomes_say_what_they_mean(app):
    snoozed = []

    @app.task(max_attempts=2, backoff=Backoff.fixed(3600))
    async def end(how: str) -> str:
        match how:
            case "skip":
                raise Skip("already done")
            case "dead":
                raise Dead("bad address")
            case "retry":
                raise Retry(0.01, reason="busy")
            case "group":
                raise BaseExceptionGroup("several", [ValueError("x"), BaseExceptionGroup("inner", [Skip("inside")])])
        snoozed.append(how)
        if len(snoozed) < 4:
            raise Snooze(at=datetime.now(UTC) + timedelta(milliseconds=10))
        return "awake"

    async with app, app.worker():
        skip, dead, retry, group, snooze = await app.enqueue(
            [end.call(how) for how in ("skip", "dead", "retry", "group", "snooze")]
        )
        with pytest.raises(JobSkipped):
            await skip.result(timeout=10)
        assert (await skip.refresh()).reason == "already done"
        with pytest.raises(JobDead):
            await dead.result(timeout=10)
        assert (await dead.refresh()).reason == "bad address"
        assert (await dead.refresh()).attempt == 1
        with pytest.raises(JobDead):
            await retry.result(timeout=10)
        assert (await retry.refresh()).failures == 2
        with pytest.raises(JobSkipped):
            await group.result(timeout=10)
        assert await snooze.result(timeout=10) == "awake"
        seen = await snooze.refresh()
    assert (seen.attempt, seen.failures) == (4, 0)


async def test_a_result_that_cannot_be_stored_is_the_jobs_failure(app):
    @app.task(max_attempts=1)
    async def odd(n: int) -> object:
        return float("nan") if n else object()

    @app.task
    async def fine() -> str:
        return "fine"

    async with app, app.worker():
        handles = await app.enqueue([odd.call(0), odd.call(1), fine.call()])
        for handle in handles[:2]:
            with pytest.raises(JobDead):
                await handle.result(timeout=10)
        assert (await handles[0].refresh()).errors[0].kind == "InvalidCall"
        assert await handles[2].result(timeout=10) == "fine"


async def test_unknown_tasks_are_left_or_failed(tmp_path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    sender, receiver = Perdure(url), Perdure(url)

    @sender.task(name="new", max_attempts=1)
    async def new() -> None: ...

    @receiver.task
    async def known() -> int:
        return 1

    async with sender, receiver:
        job = await new.enqueue()
        async with receiver.worker(poll=0.05):
            await (await known.enqueue()).result(timeout=10)
            assert (await job.refresh()).state is State.READY
        async with receiver.worker(unknown="fail", poll=0.05):
            with pytest.raises(JobDead):
                await job.result(timeout=10)
        assert "no task named 'new'" in (await job.refresh()).errors[0].message


async def test_handlers_see_their_own_context_variables_only(app):
    from contextvars import ContextVar

    seen: ContextVar[str] = ContextVar("seen", default="clean")
    found = []

    @app.task
    async def mark(name: str) -> None:
        found.append(seen.get())
        seen.set(name)
        await asyncio.sleep(0)
        assert seen.get() == name
        assert Context.current().job.payload == f'{{"name":"{name}"}}'

    async with app, app.worker(concurrency=1):
        for handle in await app.enqueue([mark.call(str(n)) for n in range(20)]):
            await handle.result(timeout=10)
    assert found == ["clean"] * 20
    with pytest.raises(NoContext):
        Context.current()


async def test_asyncio_tools_work_inside_a_handler(app):
    @app.task
    async def tools() -> list[str]:
        said = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            said.append("timeout")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(10))
                group.create_task(_boom())
        except* ValueError:
            said.append("group")
        return said

    async with app, app.worker(concurrency=1):
        for handle in await app.enqueue([tools.call() for _ in range(3)]):
            assert await handle.result(timeout=10) == ["timeout", "group"]


async def _boom() -> None:
    raise ValueError


async def test_retention_delete_hides_at_once_and_result_still_reads(app):
    @app.task(retention=Retention.delete())
    async def once() -> str:
        return "kept for the caller"

    async with app, app.worker():
        job = await once.enqueue()
        assert await job.result(timeout=10) == "kept for the caller"
        assert await app.jobs.get(job.id) is None
        assert await app.jobs.count() == 0


async def test_a_job_that_was_said_to_be_dead_is_logged_with_its_reason_once(caplog):
    app = Perdure("memory://")

    @app.task
    async def send() -> None:
        raise Dead("bad address")

    async with app, app.worker():
        with pytest.raises(JobDead):
            await (await send.enqueue()).result(timeout=10)
    (line,) = [record.getMessage() for record in caplog.records if "is dead" in record.getMessage()]
    assert line.endswith("(send) is dead: bad address")
