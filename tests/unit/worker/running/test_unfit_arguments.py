"""A stored payload that cannot be passed to its handler makes a dead letter at once: another attempt would fail alike."""

from __future__ import annotations

import pytest

from perdure import Backoff, Context, InvalidCall, Item, JobDead, Perdure, State
from perdure.core.record import NewJob
from perdure.tasks.options import JobTemplate

# what is stored, and the reason of the dead letter
UNFIT = [
    ('{"number":"seven"}', "argument 'number': expected `int`, got `str`"),
    ("{}", "argument 'number' is missing; it takes {task}(number: int)"),
    ('{"number":1,"colour":"red"}', "there is no parameter 'colour'; it takes {task}(number: int)"),
    ("[1]", "the payload is not an object with the arguments by name, but of kind array"),
    ('{"number":1', "the payload is no JSON: input data was truncated"),
]


@pytest.fixture
def app(app: Perdure):
    app._defaults |= {"backoff": Backoff.fixed(0), "max_attempts": 5}
    return app


async def stored(app: Perdure, task: str, payload: str) -> NewJob:
    """A job as another program may have stored it."""
    job = JobTemplate(task, app.definitions()[task].options).job(payload, lambda text: text)
    await (await app._runtime.storage()).enqueue([job])
    return job


@pytest.mark.parametrize("kind", ["async", "def", "batch", "middleware"])
async def test_a_payload_that_does_not_fit_is_dead_at_once(app, kind):
    calls = []

    if kind == "batch":

        @app.batch_task(name="count", size=4, wait=0)
        async def count(items: list[Item[int]]) -> None:
            calls.append(items)

        payloads = [(text.replace("number", "items"), words.replace("number", "items")) for text, words in UNFIT]
    else:
        payloads = UNFIT
        if kind == "middleware":

            @app.middleware
            async def around(ctx, call_next):
                return await call_next()

        if kind == "def":

            @app.task(name="count")
            def count(number: int) -> None:
                calls.append(number)

        else:

            @app.task(name="count")
            async def count(number: int) -> None:
                calls.append(number)

    jobs = [(await stored(app, "count", payload), words.format(task="count")) for payload, words in payloads]
    async with app.worker():
        for job, words in jobs:
            with pytest.raises(JobDead):
                await count.handle(job.id).result(timeout=20)
            dead = await app.jobs.get(job.id)
            assert dead.state is State.DEAD
            assert dead.attempt == dead.failures == len(dead.errors) == 1
            assert dead.reason == "its arguments do not fit the task"
            assert (dead.errors[0].kind, dead.errors[0].message) == ("InvalidCall", f"count: {words}")
    assert calls == []
    await app.close()


async def test_an_item_of_a_pull_that_does_not_fit_is_dead_at_once(app):
    @app.task
    async def count(number: int) -> None: ...

    job = await stored(app, "count", '{"number":"seven"}')
    async with app.claim(tasks=[count], max_wait=0) as items:
        assert items == []
    dead = await app.jobs.get(job.id)
    assert (dead.state, dead.attempt) == (State.DEAD, 1)
    await app.close()


async def test_a_result_that_does_not_fit_the_next_task_is_dead_at_once(app):
    @app.task
    async def word() -> object:
        return "seven"

    @app.task
    async def count(number: int) -> None: ...

    async with app.worker():
        job = await app.enqueue(word.call().then(count))
        with pytest.raises(
            JobDead,
            match="its arguments do not fit the task; last: InvalidCall: count: argument 'number': expected `int`",
        ):
            await job.result(timeout=20)
        assert (await job.refresh()).attempt == 1
    await app.close()


async def test_a_dead_letter_of_this_kind_runs_when_the_task_fits_again(app):
    @app.task(name="count")
    async def strict(number: int) -> None: ...

    job = await stored(app, "count", '{"number":"seven"}')
    async with app.worker():
        with pytest.raises(JobDead):
            await strict.handle(job.id).result(timeout=20)
    del app._declared["count"]

    @app.task(name="count")
    async def lenient(number: int | str) -> int | str:
        return number

    async with app.worker():
        assert await app.dead.retry(job.id) == 1
        assert await lenient.handle(job.id).result(timeout=20) == "seven"
    await app.close()


async def test_an_invalid_call_of_the_handlers_own_is_retried(app):
    """Only the job's own payload counts: a handler may get over a call that it made wrongly."""

    @app.task
    async def count(number: int) -> None: ...

    @app.task
    async def outer(ctx: Context) -> int:
        if ctx.job.attempt == 1:
            await count.enqueue("seven")
        if ctx.job.attempt == 2:
            await count.run("seven")
        if ctx.job.attempt == 3:
            raise InvalidCall("mine")
        return ctx.job.attempt

    async with app.worker():
        assert await (await outer.enqueue()).result(timeout=20) == 4
    await app.close()
